// Saved under one layout, resumed under another: the same state, the same losses, few bytes.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/group.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "snapshot/diff.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/reshape.h"
#include "train/state/part_save.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

// A layout, and what else its recipe sets.
struct Layout {
  int ranks = 1;
  Sets sets = {};
};

struct Case {
  std::string name;
  Sets common;  // of the model and the rule that trains it
  Layout from, to, by;
};

// Heads that 2, 3 and 6 ranks share evenly, and a feed-forward width that none of 3, 5 and 7 ranks do.
base::Recipe recipe_of(const Sets& common, const Layout& layout) {
  Sets sets{"model.heads=6",   "model.kv_heads=6", "train.steps=6",        "train.global_batch=6",    "snapshot.every=3",
            "snapshot.keep=4", "eval.every=0",     "optim.warmup_steps=0", "data.sampler=sequential", "optim.learning_rate=0.003"};
  sets.insert(sets.end(), common.begin(), common.end());
  sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
  return small_decoder("llama", sets);
}

// A run as a kill after the save of step 3 leaves it.
void copy_as_of_step_3(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  for (const fs::path& run : {to, to / "island-1"}) fs::remove_all(run / "snapshots/step-00000006");
}

fs::path step_3(const fs::path& run) { return run / "snapshots/step-00000003"; }

void expect_close(const std::vector<double>& found, const std::vector<double>& expected, double by, const std::string& what) {
  ASSERT_EQ(found.size(), 6u) << what;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_LE(std::abs(found[i] - expected[i]), by * std::abs(expected[i])) << what << " " << i;
}

// `run` as ranks of this layout save it, in a new folder.
void reshape_into(const fs::path& run, const fs::path& out, const Sets& common, const Layout& layout) {
  copy_run(run, 3, out);
  Start start;
  start.out = out;
  for (const std::exception_ptr& error :
       comm::LocalNetwork(layout.ranks).run([&](comm::World& world) { EXPECT_EQ(reshape(world, recipe_of(common, layout), start), 3); }))
    if (error) std::rethrow_exception(error);
}

void expect_no_difference(const fs::path& a, const fs::path& b, const std::string& what) {
  const snapshot::SnapshotDiff found = snapshot::diff(snapshot::open(a), snapshot::open(b));
  EXPECT_TRUE(found.same()) << what << ": " << found.tensors_differ.size() << " tensors, " << found.texts_differ.size() << " files";
  EXPECT_GT(found.tensors, 20) << what;
  for (const snapshot::TensorDifference& one : found.tensors_differ)
    ADD_FAILURE() << what << ": " << one.section << " " << one.name << " " << one.what << ", " << one.elements << " elements";
  for (const std::string& file : found.texts_differ) ADD_FAILURE() << what << ": " << file;
}

const Layout kOne{1};

class UniversalCheckpoint : public testing::TestWithParam<Case> {};

TEST_P(UniversalCheckpoint, GoesOnInAnyLayoutAndComesBackUnchanged) {
  Case c = GetParam();
  const harness::ScratchFolder scratch;
  for (std::string& one : c.common)
    if (one == "model.from=BASE") {  // adapters need a pretrained model
      losses_on(1, recipe_of({"train.steps=1", "snapshot.every=1"}, kOne), scratch / "base");
      one = "model.from=" + (scratch / "base").string();
    }
  const std::vector<double> losses = losses_on(c.from.ranks, recipe_of(c.common, c.from), scratch / "a");
  const fs::path killed = scratch / "killed";
  copy_as_of_step_3(scratch / "a", killed);
  const bool islands = fs::exists(killed / "island-1");
  const bool bf16 = c.name.starts_with("bf16");
  for (const auto& [name, layout, by] : {std::tuple{"same", c.from, 0.0}, std::tuple{"other", c.to, bf16 ? 2e-2 : 1e-5}}) {
    fs::copy(killed, scratch / name, fs::copy_options::recursive);
    expect_close(losses_on(layout.ranks, recipe_of(c.common, layout), scratch / name, true), losses, by, name);
  }
  reshape_into(killed, scratch / "b", c.common, c.to);
  reshape_into(scratch / "b", scratch / "c", c.common, c.by);
  reshape_into(scratch / "c", scratch / "back", c.common, c.from);
  for (const std::string& island : islands ? Sets{"", "island-1"} : Sets{""}) {
    for (const char* one : {"b", "c", "back"}) expect_no_difference(step_3(killed / island), step_3(scratch / one / island), one);
    // The same layout writes the same bytes.
    for (const auto& entry : fs::recursive_directory_iterator(step_3(killed / island))) {
      if (entry.path().extension() != ".safetensors") continue;
      const fs::path name = fs::relative(entry.path(), killed);
      EXPECT_TRUE(base::read_file(entry.path(), 1 << 26) == base::read_file(scratch / "back" / name, 1 << 26)) << name;
    }
  }
}

const Layout kDp3Zero3{3, {"memory.zero=3"}}, kTp2{2, {"mesh.tp=2"}}, kTp3{3, {"mesh.tp=3"}}, kPp3{3, {"mesh.pp=3"}},
    kCp2{2, {"mesh.cp=2"}}, kPp3Dp2{6, {"mesh.pp=3", "mesh.dp=2"}}, kTp2Dp3Zero1{6, {"mesh.tp=2", "memory.zero=1"}},
    kTp2Pp2Dp2{8, {"mesh.tp=2", "mesh.pp=2", "memory.zero=1"}}, kDp5Zero2{5, {"memory.zero=2"}}, kDp7Zero3{7, {"memory.zero=3"}},
    kHybrid{4, {"mesh.shard=2"}}, kCp2Tp2Zero3{4, {"mesh.cp=2", "mesh.tp=2", "memory.zero=3"}};

Layout islands(int ranks, Sets sets) {
  sets.insert(sets.end(), {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=2"});
  return {ranks, std::move(sets)};
}

INSTANTIATE_TEST_SUITE_P(
    Every, UniversalCheckpoint,
    testing::Values(
        Case{"plain", {}, kTp2Pp2Dp2, kDp3Zero3, kOne}, Case{"odd_ranks", {}, kDp5Zero2, kTp3, kDp7Zero3},
        Case{"stages", {}, kPp3, kTp2Dp3Zero1, kPp3Dp2}, Case{"context", {}, kCp2, kHybrid, kCp2Tp2Zero3},
        Case{"tied", {"model.tied=true"}, kPp3Dp2, kTp3, kDp3Zero3}, Case{"untied", {"model.tied=false"}, kOne, kTp2Pp2Dp2, kPp3},
        Case{"lora", {"model.from=BASE", "model.lora.rank=2", R"(model.lora.targets=["q_proj", "up_proj"])"}, kDp3Zero3, kTp2, kPp3},
        Case{"frozen", {R"(model.train=["*q_proj*", "*norm*", "*layers.1.mlp*"])"}, kTp2Pp2Dp2, kDp3Zero3, kOne},
        Case{"bf16", {"train.precision=bf16", "train.parameters=bf16"}, kTp2, kDp3Zero3, kPp3},
        Case{"bf16_passes", {"train.precision=bf16"}, kDp3Zero3, kTp2, kPp3},
        Case{"documents", {"data.packing=documents"}, kDp3Zero3, kCp2, kTp2}, Case{"muon", {"optim.kind=muon"}, kDp3Zero3, kTp2, kPp3},
        Case{"adafactor", {"optim.kind=adafactor"}, kTp2Dp3Zero1, kDp5Zero2, kPp3},
        Case{"islands", {}, islands(4, {"memory.zero=1"}), islands(4, {"mesh.tp=2"}), islands(6, {"mesh.pp=3"})},
        Case{"islands_of_three", {}, islands(6, {"memory.zero=3"}), islands(2, {}), islands(4, {"mesh.tp=2"})}),
    [](const auto& c) { return c.param.name; });

// The fakes that a comparison of losses must notice.
TEST(UniversalCheckpoints, LossesShowMomentsThatWereNotRestored) {
  const harness::ScratchFolder scratch;
  const std::vector<double> losses = losses_on(2, recipe_of({}, {2, {"memory.zero=1"}}), scratch / "a");
  copy_as_of_step_3(scratch / "a", scratch / "b");
  for (const bool forgets : {false, true}) {
    std::vector<double> found;
    harness::on_ranks(1, [&](comm::World& world) {
      const std::unique_ptr<Job> job =
          build(world, recipe_of({}, kOne), {.out = scratch / "b", .resume = true, .cache = {}, .terminal = nullptr}, {});
      if (forgets)
        for (const mesh::NamedTensor& one : job->engine.optimizer->state()) one.tensor.zero_();
      for (int step = 0; step < 3; ++step) {
        const TakenStep taken = take_step(*job);
        ++job->progress.steps_done;
        found.push_back(taken.output.loss_sum.item<double>() / static_cast<double>(taken.loss_denominator));
      }
    });
    double largest = 0;
    for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] / losses[3 + i] - 1));
    if (forgets)
      EXPECT_GT(largest, 1e-3);
    else
      EXPECT_LE(largest, 1e-5);
  }
}

int64_t state_bytes(const fs::path& snapshot) {
  int64_t bytes = 0;
  const snapshot::OpenSnapshot opened = snapshot::open(snapshot);
  for (const auto& [name, file] : opened.manifest().files)
    if (name.ends_with(".safetensors")) bytes += file.bytes;
  return bytes;
}

// What all threads of this process have read by read() and pread() so far.
int64_t bytes_read_by_process() {
  std::ifstream file("/proc/self/io");
  std::string word;
  int64_t bytes = 0;
  file >> word >> bytes;
  return bytes;
}

// More than 64 MB: weights and two moments.
base::Recipe large(const Sets& sets) {
  Sets all{"model.embed=384", "model.mlp=1111", "model.heads=6", "model.kv_heads=6", "snapshot.every=3", "eval.every=0"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_decoder("llama", all);
}

TEST(UniversalCheckpoints, SavesSendNothingAndLoadsReadEveryByteOnce) {
  const harness::ScratchFolder scratch;
  const Start start{.out = scratch / "run", .cache = {}, .terminal = nullptr};
  const harness::Run saved = harness::on_ranks(4, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, large({"mesh.tp=2", "memory.zero=1"}), start, {});
    if (world.rank() == 0) base::make_folder(start.out);
    if (world.rank() == 0) base::write_atomically(start.out / "recipe.toml", std::string_view(job->config.recipe_toml));
    job->progress.steps_done = 3;
    job->engine.store->wait_for_gathers();  // of the weights that the job starts with
    world.everyone().barrier("ready").wait_host();
    const int64_t before = world.ledger().total().bytes;
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
    writer.save();
    writer.finish();
    writer.rethrow_failure();
    EXPECT_LT(world.ledger().total().bytes - before, 100'000);
  });
  const int64_t bytes = state_bytes(step_3(start.out));
  EXPECT_GT(bytes, 64'000'000);
  EXPECT_LT(400'000, bytes / 100);  // of four ranks
  Start resumed = start;
  resumed.resume = true;
  for (const auto& [ranks, sets] : {std::pair{4, Sets{"mesh.tp=2", "memory.zero=1"}}, std::pair{3, Sets{"memory.zero=3"}},
                                    std::pair{8, Sets{"mesh.pp=2", "mesh.tp=2"}}, std::pair{5, Sets{}}}) {
    const int64_t before = bytes_read_by_process();
    const harness::Run run = harness::on_ranks(ranks, [&](comm::World& world) { build(world, large(sets), resumed, {}); });
    EXPECT_LT(bytes_read_by_process() - before, bytes * 11 / 10) << ranks << " ranks";
    EXPECT_GT(bytes_read_by_process() - before, bytes * 9 / 10) << ranks << " ranks: it must read by read()";
    EXPECT_THAT(run.log.at(0), testing::Contains(HasSubstr("bytes read by all of them together"))) << ranks;
  }
}

// Ranks that load what they have saved themselves send next to nothing.
TEST(UniversalCheckpoints, AllRanksReadTheirOwnWhereTheLayoutIsTheSame) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = recipe_of({"model.embed=96", "model.mlp=301"}, kDp3Zero3);
  losses_on(3, recipe, scratch / "run");
  const harness::Run run = harness::on_ranks(
      3, [&](comm::World& world) { build(world, recipe, {.out = scratch / "run", .resume = true, .cache = {}, .terminal = nullptr}, {}); });
  EXPECT_LT(run.ledger.total(comm::Purpose::state).bytes, state_bytes(scratch / "run/snapshots/step-00000006") / 4);
}

// One snapshot, damaged by `act`. The refusal.
std::string refusal_after(const std::function<void(const fs::path&)>& act, int ranks = 3) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = recipe_of({"train.steps=3"}, kDp3Zero3);
  losses_on(3, recipe, scratch / "run");
  act(step_3(scratch / "run"));
  const harness::Run run = harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) {
    build(world, recipe, {.out = scratch / "run", .resume = true, .cache = {}, .terminal = nullptr}, {});
  });
  EXPECT_EQ(run.errors.size(), static_cast<size_t>(ranks)) << "a rank that does not refuse";
  EXPECT_EQ(run.error_on(0).kind(), Error::Kind::corrupt_file);
  for (int rank = 1; rank < ranks; ++rank) EXPECT_STREQ(run.error_on(rank).what(), run.error_on(0).what());
  return run.error_on(0).what();
}

void flip_byte(const fs::path& file, const std::string& tensor) {
  const snapshot::Safetensors opened(file.string());
  std::string bytes = base::read_file(file, 1 << 26);
  const int64_t at = (opened.find(tensor)->begin + opened.find(tensor)->end) / 2;
  bytes[static_cast<size_t>(at)] = static_cast<char>(bytes[static_cast<size_t>(at)] ^ 4);
  std::ofstream(file, std::ios::binary) << bytes;
}

TEST(UniversalCheckpoints, NameTheTensorAndTheFileThatAreDamaged) {
  const std::string weights = refusal_after([](const fs::path& folder) { flip_byte(folder / "model.safetensors", "model.norm.weight"); });
  EXPECT_THAT(weights, HasSubstr("model.safetensors: "));
  EXPECT_THAT(weights, HasSubstr("model.norm.weight"));

  std::string tensor;
  const std::string moments = refusal_after([&](const fs::path& folder) {
    const fs::path file = folder / "training/rank-00001.safetensors";
    tensor = snapshot::Safetensors(file.string()).entries().back().name;
    flip_byte(file, tensor);
  });
  EXPECT_THAT(moments, HasSubstr("rank-00001.safetensors: "));
  EXPECT_THAT(moments, HasSubstr(tensor.substr(tensor.find('/') + 1)));

  const std::string deleted = refusal_after([](const fs::path& folder) { fs::remove(folder / "training/rank-00002.safetensors"); });
  EXPECT_THAT(deleted, HasSubstr("rank-00002.safetensors: missing"));
  EXPECT_THAT(deleted, HasSubstr("it has parts of exp_avg."));

  const std::string cut = refusal_after([](const fs::path& folder) {
    const fs::path file = folder / "model.safetensors";
    fs::resize_file(file, fs::file_size(file) - 5);
  });
  EXPECT_THAT(cut, HasSubstr("model.safetensors: "));
  EXPECT_THAT(cut, HasSubstr("the manifest says"));
  EXPECT_THAT(cut, HasSubstr("weight"));

  const std::string rank_cut = refusal_after([](const fs::path& folder) {
    const fs::path file = folder / "training/rank-00000.safetensors";
    fs::resize_file(file, fs::file_size(file) / 2);
  });
  EXPECT_THAT(rank_cut, HasSubstr("rank-00000.safetensors: "));
  EXPECT_THAT(rank_cut, HasSubstr("exp_avg"));
}

// Damage that only reading finds, on one island: both go back to the step that both have.
TEST(UniversalCheckpoints, IslandsGoBackTogetherWhereOneFindsDamage) {
  const harness::ScratchFolder scratch;
  const Layout layout = islands(4, {"memory.zero=1"});
  const base::Recipe recipe = recipe_of({}, layout);
  const std::vector<double> losses = losses_on(4, recipe, scratch / "run");
  flip_byte(scratch / "run/island-1/snapshots/step-00000006/model.safetensors", "model.norm.weight");
  const harness::Run run = harness::on_ranks(4, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, recipe, {.out = scratch / "run", .resume = true, .cache = {}, .terminal = nullptr}, {});
    EXPECT_EQ(job->progress.steps_done, 3);
  });
  EXPECT_THAT(run.log.at(2), testing::Contains(HasSubstr("snapshot of step 6 is damaged, passed over")));
  EXPECT_EQ(losses_on(4, recipe, scratch / "run", true), losses);
}

TEST(UniversalCheckpoints, DamageInTheNewestMeansTheOneBefore) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = recipe_of({}, kDp3Zero3);
  const std::vector<double> losses = losses_on(3, recipe, scratch / "run");
  flip_byte(scratch / "run/snapshots/step-00000006/model.safetensors", "model.norm.weight");
  EXPECT_EQ(losses_on(3, recipe, scratch / "run", true), losses);
}

TEST(UniversalCheckpoints, StateThatARecipeHasNoUseForIsNotDropped) {
  const harness::ScratchFolder scratch;
  losses_on(2, recipe_of({"train.steps=3"}, {2, {"memory.zero=1"}}), scratch / "run");
  const harness::Run run = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) {
    build(world, recipe_of({"optim.kind=sgd", "optim.momentum=0"}, kOne),
          {.out = scratch / "run", .resume = true, .cache = {}, .terminal = nullptr}, {});
  });
  EXPECT_EQ(run.error_on(0).kind(), Error::Kind::bad_input);
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("it has state of the section optimizer"));
}

// Two of four ranks are on a machine that has another folder under that name, or none. The same files, written and read through the others.
TEST(UniversalCheckpoints, RanksThatDoNotSeeTheFolderWriteAndReadThroughOthers) {
  for (const std::string mode : {"sync", "async"})
    for (const Layout& layout : {Layout{4, {"mesh.tp=2", "memory.zero=1"}}, Layout{3, {"memory.zero=3"}}}) {
      const harness::ScratchFolder scratch;
      const base::Recipe recipe = recipe_of({"snapshot.mode=" + mode}, layout);
      const std::vector<double> losses = losses_on(layout.ranks, recipe, scratch / "all");
      const auto run_apart = [&](bool resume) {
        return harness::on_ranks(layout.ranks, [&](comm::World& world) {
          const fs::path out = scratch / (world.rank() == 0 || world.rank() == 2 ? "here" : "far");
          run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
        });
      };
      const harness::Run saved = run_apart(false);
      const int64_t state = state_bytes(scratch / "here/snapshots/step-00000006");
      EXPECT_GT(saved.ledger.total(comm::Purpose::state).bytes, state / layout.ranks);
      EXPECT_LT(saved.ledger.total(comm::Purpose::state).bytes, 3 * state);  // two saves
      for (const char* step : {"step-00000003", "step-00000006"}) {
        expect_no_difference(scratch / "all/snapshots" / step, scratch / "here/snapshots" / step, mode);
        for (const char* file : {"model.safetensors", "training/rank-00001.safetensors"})
          EXPECT_TRUE(base::read_file(scratch / "all/snapshots" / step / file, 1 << 26) ==
                      base::read_file(scratch / "here/snapshots" / step / file, 1 << 26));
        EXPECT_FALSE(fs::exists(scratch / "here/snapshots" / step / ".seen"));
      }
      EXPECT_FALSE(fs::exists(scratch / "far"));
      fs::remove_all(scratch / "here/snapshots/step-00000006");
      run_apart(true);
      std::vector<double> found;
      for (const base::MetricsRow& row : base::read_metrics(scratch / "here/metrics.jsonl")) found.push_back(row.number("loss"));
      EXPECT_EQ(found, losses);
      EXPECT_FALSE(fs::exists(scratch / "far"));
    }
}

// A vote that cannot be read costs the save, not the run.
TEST(UniversalCheckpoints, AVoteThatIsNoVoteCostsTheSave) {
  const harness::ScratchFolder scratch;
  scratch.file("recipe.toml", "");
  for (const char* vote :
       {"{", R"({"rank": 1, "files": {}, "shared": {}, "pieces": {}})",
        R"({"rank": 0, "files": {"../up": {"bytes": 1, "cells": []}}, "shared": {}, "pieces": {}})",
        R"({"rank": 0, "files": {}, "shared": {"model.safetensors": {"bytes": -8, "cells": [[0,1,8,0,"00"]]}}, "pieces": {}})",
        R"({"rank": 0, "files": {}, "shared": {}, "pieces": {"optimizer": [{"name": "a", "dtype": "F32"}]}})"}) {
    auto staging = std::make_unique<snapshot::StagingFolder>(scratch.path().string(), 1, 0, base::real_disk());
    const fs::path folder = staging->path();
    RankSnapshot saved;
    saved.rest = snapshot::Contents{.step = 1};
    PartSave save({.run_dir = scratch.path().string(),
                   .folder = folder.string(),
                   .rank = 0,
                   .ranks = 1,
                   .keep = 1,
                   .staging = std::move(staging),
                   .saved = std::move(saved),
                   .disk = base::real_disk()});
    save.write();
    std::ofstream(folder / ".votes/rank-0.json") << vote;
    try {
      save.commit();
      ADD_FAILURE() << vote;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::disk) << vote << ": " << error.what();
    }
    EXPECT_TRUE(snapshot::list(scratch.path().string()).empty());
  }
}

}  // namespace
}  // namespace cairn::train
