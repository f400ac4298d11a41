#include "train/replay.h"

#include <bit>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/random.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "base/version.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

base::Recipe replayed_recipe(const std::string& more = "") {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 2, embed = 16, heads = 2, kv_heads = 1, mlp = 24}
    data = {vocab = 260, length = 12, stories_bytes = 20000}
    train = {steps = 14, global_batch = 5}
    optim = {warmup_steps = 2}
    snapshot = {every = 4, keep = 2}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, samples = 2}
  )",
                                            "replayed.toml");
  if (!more.empty()) recipe.set(more);
  return recipe;
}

void train_run(const std::filesystem::path& out, int ranks, const std::string& more = "", bool resume = false) {
  const base::Stop never;
  harness::on_ranks(ranks, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = resume;
    run(world, replayed_recipe(more), start, {}, never);
  });
}

Replayed replay_on(const std::filesystem::path& out, int ranks, int64_t step, bool text = false) {
  Replayed result;
  const StepOfRecord record = read_step_of_record(out, step);
  harness::on_ranks(ranks, [&](comm::World& world) {
    const Replayed mine = replay(world, record, {}, {.text = text});
    if (world.rank() == 0) result = mine;
  });
  return result;
}

std::string refusal_of_record(const std::filesystem::path& run, int64_t step) {
  try {
    read_step_of_record(run, step);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Replay, GivesLossAndGradientNormOfAnyStepBitForBit) {
  const harness::ScratchFolder scratch;
  for (const int ranks : {1, 2, 3}) {
    const std::filesystem::path out = scratch / std::to_string(ranks);
    train_run(out, ranks);
    // Snapshots of steps 12 and 14 are kept. One step goes from the beginning, one from a snapshot, one is drawn.
    const auto drawn = static_cast<int64_t>(base::Random(20261115).for_index(static_cast<uint64_t>(ranks)).uniform(0) * 14) + 1;
    for (const int64_t step : {int64_t{1}, int64_t{13}, drawn}) {
      const Replayed result = replay_on(out, ranks, step);
      EXPECT_TRUE(result.equal()) << ranks << " ranks, step " << step << ": " << result.loss_then << " and " << result.loss_now << ", "
                                  << result.norm_then << " and " << result.norm_now;
      EXPECT_TRUE(result.same_samples);
      EXPECT_THAT(result.differences, IsEmpty());
      EXPECT_EQ(result.from, step == 13 ? 12 : step == 14 ? 12 : 0);
      EXPECT_EQ(result.samples.size(), 5u);
    }
  }
}

TEST(Replay, LeavesTheRunAsItWas) {
  const harness::ScratchFolder scratch;
  train_run(scratch / "run", 1);
  const auto listing = [&] {
    std::map<std::string, std::filesystem::file_time_type> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch / "run"))
      all[entry.path().string()] = entry.last_write_time();
    return all;
  };
  const auto before = listing();
  replay_on(scratch / "run", 1, 13);
  EXPECT_EQ(listing(), before);
}

TEST(Replay, ShowsTheSamplesAsText) {
  const harness::ScratchFolder scratch;
  train_run(scratch / "run", 1);
  const Replayed result = replay_on(scratch / "run", 1, 13, true);
  for (const ReplayedSample& sample : result.samples) {
    EXPECT_EQ(sample.tokens, 12);
    EXPECT_GE(sample.text.size(), 12u);
  }
}

TEST(Replay, SaysWhatIsNotAsItWas) {
  const harness::ScratchFolder scratch;
  train_run(scratch / "run", 2);
  const Replayed alone = replay_on(scratch / "run", 1, 13);
  EXPECT_NEAR(alone.loss_now, alone.loss_then, 1e-5);
  EXPECT_THAT(alone.differences, testing::ElementsAre("other ranks: 2 then, 1 now"));
  // A number that the step did not compute.
  const std::filesystem::path metrics = scratch / "run" / "metrics.jsonl";
  std::vector<base::MetricsRow> rows = base::read_metrics(metrics);
  std::filesystem::remove(metrics);
  for (auto& [name, value] : rows[12].values) {
    if (name == "loss") value = std::bit_cast<double>(std::bit_cast<uint64_t>(std::get<double>(value)) + 1);
    if (name == "samples") value = "0000000000000000";
  }
  base::Metrics writer(metrics);
  for (const base::MetricsRow& row : rows) writer.write(row);
  const Replayed changed = replay_on(scratch / "run", 2, 13);
  EXPECT_FALSE(changed.equal());
  EXPECT_FALSE(changed.same_samples);
  EXPECT_THAT(changed.differences, IsEmpty());
  EXPECT_TRUE(replay_on(scratch / "run", 2, 12).equal());
}

TEST(Replay, FollowsARunThatWasResumedOnOtherRanks) {
  const harness::ScratchFolder scratch;
  train_run(scratch / "run", 2);
  for (const char* late : {"step-00000014"}) std::filesystem::remove_all(scratch / "run" / "snapshots" / late);
  train_run(scratch / "run", 1, "", true);  // steps 13 and 14 on one rank
  const std::vector<RunStart> starts = read_starts(scratch / "run" / kStartsFile);
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0].ranks, 2);
  EXPECT_EQ(starts[1].ranks, 1);
  EXPECT_EQ(starts[1].after_step, 12);
  EXPECT_EQ(read_step_of_record(scratch / "run", 12).start().ranks, 2);
  EXPECT_EQ(read_step_of_record(scratch / "run", 13).start().ranks, 1);
  EXPECT_TRUE(replay_on(scratch / "run", 1, 14).equal());
  EXPECT_TRUE(replay_on(scratch / "run", 2, 12).equal());
  std::filesystem::remove_all(scratch / "run" / "snapshots" / "step-00000012");
  const Replayed across = replay_on(scratch / "run", 1, 14);
  ASSERT_EQ(across.differences.size(), 1u);
  EXPECT_THAT(across.differences[0], HasSubstr("the run was resumed after step 12, whose snapshot is gone"));
}

// Sample 27 comes in step 6 and is bad: the step is skipped, or the run is rolled back to step 4 and continues after the sample.
TEST(Replay, FollowsARunThatSkippedABadStepOrWasRolledBack) {
  const harness::ScratchFolder scratch;
  std::vector<int64_t> ids(120);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> weights(ids.size(), 1.0f);
  weights[27] = 3e38f;
  const data::Subset subset = data::Subset::of(ids, weights);
  for (const char* policy : {"skip", "rollback"}) {
    const base::Stop never;
    harness::on_ranks(2, [&](comm::World& world) {
      Start start;
      start.out = scratch / policy;
      base::Recipe recipe = replayed_recipe("data.sampler=sequential");
      recipe.set("train.on_bad_step", std::string(policy), "test");
      run(world, std::move(recipe), start, subset, never);
    });
    const StepOfRecord twelve = read_step_of_record(scratch / policy, 12);
    EXPECT_EQ(twelve.batches[3], 3);
    EXPECT_EQ(twelve.batches[4], std::string(policy) == "skip" ? 4 : 6);
    for (const int64_t step : {6, 9, 13}) {  // the first two from the beginning
      const StepOfRecord record = read_step_of_record(scratch / policy, step);
      harness::on_ranks(2, [&](comm::World& world) {
        const Replayed result = replay(world, record, {}, {.subset = subset});
        EXPECT_TRUE(result.equal()) << policy << ", step " << step;
        EXPECT_TRUE(result.same_samples);
        EXPECT_EQ(result.from, step == 13 ? 12 : 0);
      });
    }
  }
}

TEST(Replay, RefusesWhatTheRecordDoesNotHave) {
  const harness::ScratchFolder scratch;
  EXPECT_THAT(refusal_of_record(scratch / "none", 1), HasSubstr("none: no such directory"));
  EXPECT_THAT(refusal_of_record(scratch.path(), 1), HasSubstr("not a run directory (no recipe.toml there)"));
  scratch.file("recipe.toml", "");
  EXPECT_THAT(refusal_of_record(scratch.path(), 1), HasSubstr("no metrics.jsonl there"));
  scratch.file("metrics.jsonl", "{\"step\": 1, \"loss\": 2.0, \"grad_norm\": 1.0}\n{\"step\": 3, \"loss\": 2.0, \"grad_norm\": 1.0}\n");
  EXPECT_THAT(refusal_of_record(scratch.path(), 3), HasSubstr("step 3 where step 2 was due"));
  EXPECT_THAT(refusal_of_record(scratch.path(), 1), HasSubstr("it has no starts.jsonl for step 1"));
  scratch.file("metrics.jsonl", "{\"step\": 1, \"loss\": 2.0, \"grad_norm\": 1.0}\n");
  EXPECT_THAT(refusal_of_record(scratch.path(), 2), HasSubstr("--step 2: " + scratch.path().string() + " has steps 1 to 1"));
  scratch.file("starts.jsonl", "{\"after_step\": 0}\n");
  EXPECT_THAT(refusal_of_record(scratch.path(), 1), HasSubstr("starts.jsonl: line 1: no ranks that can be read"));
  scratch.file("starts.jsonl", "x\n");
  EXPECT_THAT(refusal_of_record(scratch.path(), 1), HasSubstr("line 1: not a JSON object"));
}

TEST(Replay, SaysWhereTheRunWasStartedWhereItsDataAreNotFound) {
  const harness::ScratchFolder scratch;
  train_run(scratch / "run", 1);
  StepOfRecord record = read_step_of_record(scratch / "run", 2);
  std::string& recipe = record.starts.back().recipe;
  const size_t path = recipe.find("\npath = \"\"");
  ASSERT_NE(path, std::string::npos) << recipe;
  recipe.insert(path + 9, "none.txt");
  record.starts.back().folder = "/elsewhere";
  const harness::Run ended = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) { replay(world, record, {}); });
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("the run was started in /elsewhere: replay it there"));
}

TEST(RunStarts, AreReadAsTheyWereWrittenAndNameWhatDiffers) {
  const harness::ScratchFolder scratch;
  RunStart first{.after_step = 0,
                 .ranks = 2,
                 .threads = 3,
                 .device = "cpu",
                 .version = "0.1.0",
                 .build = "aa",
                 .libtorch = "2",
                 .processor = "p",
                 .instructions = "i",
                 .data = "d",
                 .folder = "f",
                 .recipe = "r\n"};
  RunStart second = first, third = first;
  second.after_step = 10;
  third.after_step = 7;
  third.build = "bb";
  note_start(scratch / "s", first);
  note_start(scratch / "s", second);
  EXPECT_THAT(read_starts(scratch / "s"), testing::ElementsAre(first, second));
  note_start(scratch / "s", third);  // restarted before step 10
  EXPECT_THAT(read_starts(scratch / "s"), testing::ElementsAre(first, third));
  EXPECT_THAT(differences(first, second), IsEmpty());
  EXPECT_THAT(differences(first, third), testing::ElementsAre(HasSubstr("another build of Cairn: 0.1.0 (aa) then, 0.1.0 (bb) now")));
  RunStart other = first;
  other.ranks = 1, other.threads = 1, other.device = "cuda", other.processor = "q", other.libtorch = "3", other.data = "e";
  EXPECT_EQ(differences(first, other).size(), 6u);
  EXPECT_GE(base::build_id().size(), 7u);
}

}  // namespace
}  // namespace cairn::train
