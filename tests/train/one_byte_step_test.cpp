// train.method = "one_byte" through the trainer: results, messages, state and refusals.
#include <filesystem>
#include <mutex>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "small_decoder.h"
#include "snapshot/pretrained.h"
#include "snapshot/snapshot.h"
#include "sync/one_byte/round_log.h"
#include "train/build.h"
#include "train/replay_log.h"
#include "train/settings.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

base::Recipe slopes(const Sets& more = {}) {
  Sets sets{"train.method=one_byte",      "train.one_byte.samples_per_round=3",
            "optim.learning_rate=1e-4",   "optim.warmup_steps=0",
            "optim.schedule=constant",    "train.steps=8",
            "train.global_batch=4",       "snapshot.every=4",
            "train.one_byte.hash_every=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

comm::Ledger slopes_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false) {
  comm::LocalNetwork network(ranks);
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  return network.ledger();
}

std::map<std::string, at::Tensor> weights_after(const std::filesystem::path& out) {
  std::map<std::string, at::Tensor> all;
  const snapshot::OpenSnapshot opened = snapshot::open(*snapshot::find_latest(out.string()));
  const snapshot::Safetensors& tensors = opened.section("model");
  for (const snapshot::TensorEntry& entry : tensors.entries()) all[entry.name] = tensors.view(entry).clone();
  return all;
}

bool same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& one) { return at::equal(one.second, b.at(one.first)); });
}

std::vector<sync::RoundRecord> records_in(const std::filesystem::path& run) {
  return sync::decode_records(sync::RoundLog::open(run / "rounds.bin")->records(), sync::SlopeCode::log8);
}

// The weights that the log of a run gives, without its snapshots, on one rank.
std::map<std::string, at::Tensor> weights_from_log(const base::Recipe& recipe, const std::filesystem::path& run,
                                                   const std::filesystem::path& scratch) {
  std::filesystem::copy(run, scratch, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(scratch / "snapshots");
  std::map<std::string, at::Tensor> all;
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         const auto job = build(world, recipe, {.out = scratch, .resume = true, .cache = {}, .terminal = nullptr}, {});
         EXPECT_EQ(job->progress.steps_done, job->config.settings.train.steps);
         for (const parallel::ParameterSlice& one : job->engine.store->pieces()) all[one.name] = one.value.clone();
       }))
    if (error) std::rethrow_exception(error);
  return all;
}

TEST(OneByteStep, SendsOneMessageToEachOtherRankInAStep) {
  const harness::ScratchFolder folder;
  const comm::Ledger ledger = slopes_on(2, slopes(), folder / "run");
  EXPECT_EQ(ledger.bytes_sent(0, comm::Purpose::gradient), 8 * (26 + 3));
}

TEST(OneByteStep, ResumesBitwiseIdenticalWithTheSameLog) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes(), folder / "whole");
  slopes_on(2, slopes({"train.steps=4"}), folder / "parts");
  const auto half = weights_after(folder / "parts");
  slopes_on(2, slopes(), folder / "parts", /*resume=*/true);
  EXPECT_TRUE(same_bits(weights_after(folder / "whole"), weights_after(folder / "parts")));
  EXPECT_FALSE(same_bits(half, weights_after(folder / "parts")));  // or the test shows nothing
  EXPECT_EQ(records_in(folder / "parts").size(), 8u);
}

// Both ranks have two samples a step, so the mean of their means is the loss of the step.
TEST(OneByteStep, TellsTheMeanLossOfEachRank) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes({"train.steps=3"}), folder / "run");
  const auto rounds = records_in(folder / "run");
  const std::vector<base::MetricsRow> rows = base::read_metrics(folder / "run" / "metrics.jsonl");
  ASSERT_EQ(rounds.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(rounds[i].messages.size(), 2u);
    const double mean = (rounds[i].messages[0].mean_loss + rounds[i].messages[1].mean_loss) / 2.0;
    EXPECT_NEAR(mean, rows[i].number("loss"), 0.01 * mean) << "step " << i + 1;  // messages have bf16
  }
}

TEST(OneByteStep, MovesWhatIsTrainedAndNothingElse) {
  const harness::ScratchFolder folder;
  slopes_on(1, slopes({"optim.learning_rate=1e-30"}), folder / "start");
  slopes_on(1, slopes({"model.train=[\"role:norm\"]"}), folder / "norms");
  const auto start = weights_after(folder / "start"), after = weights_after(folder / "norms");
  for (const auto& [name, tensor] : after) EXPECT_EQ(at::equal(tensor, start.at(name)), name.find("norm") == std::string::npos) << name;
}

// The snapshot is of step 4; the log has the steps after it.
TEST(OneByteStep, ResumesFromSnapshotAndLog) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes(), folder / "whole");
  slopes_on(2, slopes({"train.steps=7", "snapshot.last=false"}), folder / "parts");
  const comm::Ledger ledger = slopes_on(2, slopes(), folder / "parts", /*resume=*/true);
  EXPECT_EQ(ledger.bytes_sent(0, comm::Purpose::gradient), 26 + 3);  // step 8 alone
  EXPECT_TRUE(same_bits(weights_after(folder / "whole"), weights_after(folder / "parts")));
  EXPECT_EQ(records_in(folder / "parts").size(), 8u);
}

TEST(OneByteStep, TheLogAloneGivesTheWeights) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes(), folder / "run");
  EXPECT_TRUE(same_bits(weights_after(folder / "run"), weights_from_log(slopes(), folder / "run", folder / "again")));
}

TEST(OneByteStep, ALogOfOtherSettingsIsRefused) {
  const harness::ScratchFolder folder;
  slopes_on(1, slopes({"train.steps=4"}), folder / "run");
  try {
    slopes_on(1, slopes({"train.one_byte.eps=0.01"}), folder / "run", /*resume=*/true);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rounds.bin: belongs to a run with other train.one_byte.*"), std::string::npos)
        << error.what();
  }
}

mesh::NamedTensors model_in(const std::string& folder) {
  base::Log log(base::LogOptions{});
  const snapshot::Pretrained opened = snapshot::open_pretrained(folder, log);
  const auto decoder = model::make_decoder(opened.shape);
  const mesh::NamedTensors parameters = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(parameters);
  return parameters;
}

bool same_bits(const mesh::NamedTensors& a, const mesh::NamedTensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& one, const auto& other) {
           return one.name == other.name && at::equal(one.tensor, other.tensor);
         });
}

TEST(OneByteStep, BaseAndLogAreASnapshotOfTheRun) {
  const harness::ScratchFolder folder;
  const std::string base = (folder / "base").string();
  slopes_on(1, small_decoder("llama", {"train.steps=3", "train.global_batch=4", "snapshot.every=3"}), base);
  base::Log log(base::LogOptions{});
  for (const Sets& more : {Sets{}, Sets{"model.lora.rank=2"}}) {
    Sets sets = more;
    sets.push_back("model.from=" + base);
    const std::filesystem::path run = folder / (more.empty() ? "all" : "adapter");
    slopes_on(2, slopes(sets), run);
    const mesh::NamedTensors expected = model_in(run.string());
    const std::string half = (run / "snapshots" / "step-00000004").string();
    const ReplayedLog from_half = replay_log(half, run / "rounds.bin", log);
    EXPECT_TRUE(same_bits(from_half.parameters, expected)) << run;
    EXPECT_EQ(from_half.first_round, 4);
    EXPECT_EQ(from_half.last_round, 8);
    EXPECT_EQ(from_half.hashes, 2);  // before rounds 4 and 6
    EXPECT_FALSE(same_bits(model_in(half), expected));
    if (!more.empty()) continue;  // adapters begin with the run
    const ReplayedLog from_base = replay_log(base, run / "rounds.bin", log);
    EXPECT_TRUE(same_bits(from_base.parameters, expected));
    EXPECT_EQ(from_base.last_round, 8);
    EXPECT_EQ(from_base.hashes, 3);
  }
  slopes_on(1, small_decoder("llama", {"train.steps=3", "train.global_batch=4", "snapshot.every=3", "train.seed=5"}), folder / "other");
  try {
    replay_log((folder / "other").string(), folder / "all" / "rounds.bin", log);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is not the base checkpoint of"), std::string::npos) << error.what();
  }
}

// Rank 1's memory is damaged before step 3; steps 2, 4, ... compare.
TEST(OneByteStep, WeightsThatDifferAreRebuiltFromBaseAndLog) {
  const harness::ScratchFolder folder;
  slopes_on(3, slopes({"train.steps=6"}), folder / "whole");
  std::mutex mutex;
  std::map<int, std::map<std::string, at::Tensor>> ends;
  std::map<int, std::vector<bool>> repaired;
  const base::Recipe recipe = slopes({"train.steps=6"});
  for (const std::exception_ptr& error : comm::LocalNetwork(3).run([&](comm::World& world) {
         const auto job = build(world, recipe, {.out = folder / "run", .cache = {}, .terminal = nullptr}, {});
         std::map<std::string, at::Tensor> mine;
         std::vector<bool> when;
         for (int64_t step = 1; step <= 6; ++step) {
           if (step == 3 && world.rank() == 1) job->engine.store->pieces()[4].value.view({-1})[3] += 1e-6;
           take_step(*job);
           when.push_back(sync::metric(job->step->metrics(), "repaired") > 0);
           job->progress.steps_done = step;
         }
         for (const parallel::ParameterSlice& one : job->engine.store->pieces()) mine[one.name] = one.value.clone();
         const std::lock_guard lock(mutex);
         ends[world.rank()] = mine, repaired[world.rank()] = when;
       }))
    if (error) std::rethrow_exception(error);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(same_bits(ends[rank], ends[0])) << rank;
    EXPECT_EQ(repaired[rank], (std::vector<bool>{false, false, false, true, false, false})) << rank;
  }
}

// ZeRO changes who keeps what and nothing else.
TEST(OneByteStep, ZeroGivesTheSameWeightsBitwise) {
  const harness::ScratchFolder folder;
  slopes_on(2, slopes(), folder / "plain");
  const auto expected = weights_after(folder / "plain");
  for (const char* zero : {"1", "2", "3"}) {
    slopes_on(2, slopes({std::string("memory.zero=") + zero}), folder / zero);
    EXPECT_TRUE(same_bits(weights_after(folder / zero), expected)) << zero;
  }
}

// Sums of tensor-parallel products are rounded otherwise than on one rank, so slopes differ in their last bits. What a log gives does not.
TEST(OneByteStep, TensorParallelRanksAreOneMachine) {
  const harness::ScratchFolder folder;
  const Sets exact{"train.one_byte.code=fp32"};
  const auto losses = [&](int ranks, const std::string& name, const Sets& more) {
    Sets sets = exact;
    sets.insert(sets.end(), more.begin(), more.end());
    slopes_on(ranks, slopes(sets), folder / name);
    std::vector<double> all;
    for (const base::MetricsRow& row : base::read_metrics(folder / name / "metrics.jsonl")) all.push_back(row.number("loss"));
    return all;
  };
  const std::vector<double> one = losses(1, "one", {}), two = losses(2, "two", {"mesh.tp=2"}),
                            four = losses(4, "four", {"mesh.tp=2", "mesh.dp=2", "memory.zero=1"}), dp = losses(2, "dp", {"mesh.dp=2"});
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 1e-5) << i;
    EXPECT_NEAR(four[i], dp[i], 1e-5) << i;
  }
  EXPECT_NE(one.front(), one.back());
  for (const char* name : {"two", "four"})
    EXPECT_TRUE(same_bits(weights_after(folder / name),
                          weights_from_log(slopes({"train.one_byte.code=fp32"}), folder / name, folder / (std::string(name) + "-again"))))
        << name;
}

TEST(OneByteStep, TrainsInBf16) {
  const harness::ScratchFolder folder;
  for (const Sets& precision :
       {Sets{"train.precision=bf16"}, Sets{"train.precision=bf16", "train.parameters=bf16", "optim.learning_rate=1e-2"}}) {
    const std::string name = std::to_string(precision.size());
    slopes_on(2, slopes(precision), folder / name);
    const auto after = weights_after(folder / name);
    EXPECT_TRUE(same_bits(after, weights_from_log(slopes(precision), folder / name, folder / (name + "-again"))));
    Sets still = precision;
    still.emplace_back("optim.learning_rate=1e-30");
    slopes_on(1, slopes(still), folder / (name + "-start"));
    EXPECT_FALSE(same_bits(after, weights_after(folder / (name + "-start"))));
    for (const base::MetricsRow& row : base::read_metrics(folder / name / "metrics.jsonl")) EXPECT_LT(row.number("grad_norm"), 100);
  }
}

TEST(OneByteStep, RefusesWhatItCannotDo) {
  const auto message = [](const Sets& sets, int ranks) -> std::string {
    try {
      check_recipe(slopes(sets), ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}, 2), "");
  for (const char* works : {"mesh.tp=2", "memory.zero=3", "train.precision=bf16"}) EXPECT_EQ(message({works}, 2), "");
  EXPECT_NE(message({"mesh.pp=2"}, 2).find("use mesh.tp or mesh.dp"), std::string::npos);
  EXPECT_NE(message({"model.dropout=0.1"}, 1).find("model.dropout = 0.1"), std::string::npos);
  EXPECT_NE(message({"train.step=one_byte"}, 1).find("did you mean `train.method`, which takes \"one_byte\"?"), std::string::npos);
  const Sets remote{"island.number=0", "island.count=2", "island.meet=127.0.0.1:1"};
  const auto with_islands = [&](Sets more) {
    more.insert(more.end(), remote.begin(), remote.end());
    return message(more, 1);
  };
  EXPECT_EQ(with_islands({"sync.island.kind=one_byte"}), "");
  EXPECT_EQ(with_islands({"sync.island.kind=diloco", "sync.island.every=3"}),
            "sync.island.kind = diloco: does not work with train.method = one_byte, whose islands exchange messages of their own: use "
            "one_byte (--sync)");
  EXPECT_NE(with_islands({"sync.island.kind=one_byte", "train.method=gradient"}).find("carries messages of a method that makes some"),
            std::string::npos);
  EXPECT_NE(with_islands({"sync.island.kind=one_byte", "train.on_bad_step=skip"}).find("train.on_bad_step = skip"), std::string::npos);
  EXPECT_NE(with_islands({"sync.island.kind=one_byte", "train.global_batch=1"}).find("each of 2 machines"), std::string::npos);
  EXPECT_NE(message({"train.global_batch=1"}, 2).find("each of 2 machines needs a sample"), std::string::npos);
}

}  // namespace
}  // namespace cairn::train
