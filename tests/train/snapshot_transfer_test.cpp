// Islands of one world that resume although some of them lack the snapshot: it is copied to them.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/files.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "ended_models.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"
#include "train/report/run_json.h"
#include "train/train.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using TransferSets = std::vector<std::string>;

constexpr int64_t kSaved = 12, kLast = 20;

base::Recipe transfer_recipe(int islands, const std::string& rule, const TransferSets& more = {}) {
  TransferSets sets{"mesh.island=" + std::to_string(islands),
                    "sync.island.kind=" + rule,
                    "sync.island.every=4",
                    "train.steps=20",
                    "snapshot.every=4",
                    "train.global_batch=12",
                    "eval.every=0",
                    "model.layers=1"};
  if (rule == "streaming_diloco") sets.insert(sets.end(), {"sync.island.delay=2", "sync.island.wire=fp32"});
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

// Ranks that are threads; `out_of` says where the disk of a rank is.
struct TransferRun {
  int ranks = 2;
  std::function<fs::path(int rank)> out_of;
  bool resume = false;
};
harness::Run run_islands(const base::Recipe& recipe, const TransferRun& how, const harness::Options& options = {},
                         const harness::Faults& faults = {}) {
  const base::Stop never;
  const auto body = [&](comm::World& world) {
    run(world, recipe, {.out = how.out_of(world.rank()), .resume = how.resume, .cache = {}, .terminal = nullptr}, {}, never);
  };
  return harness::on_ranks(how.ranks, options, faults, body);
}
harness::Run run_islands(const base::Recipe& recipe, int ranks, const fs::path& out, bool resume) {
  return run_islands(recipe, {ranks, [&](int) { return out; }, resume});
}

fs::path island_of(const fs::path& run, int island) { return island == 0 ? run : run / ("island-" + std::to_string(island)); }

// Removes the snapshots of an island after this step.
void forget_after(const fs::path& island, int64_t step) {
  for (const snapshot::SnapshotInfo& one : snapshot::list(island.string()))
    if (one.step > step) fs::remove_all(one.path);
}

// Sets a mark in the state.json of a snapshot, as a run would have written it.
void mark_state(const fs::path& folder, bool RunState::*mark) {
  RunState state = parse_run_state(base::read_file(folder / "training/state.json", 1 << 20), "state.json");
  state.*mark = true;
  const std::string text = to_json(state);
  snapshot::Manifest manifest = snapshot::parse_manifest(base::read_file(folder / "manifest.json", 1 << 20), "manifest.json");
  manifest.files["training/state.json"] = {static_cast<int64_t>(text.size()), base::checksum(text)};
  base::write_atomically(folder / "training/state.json", text);
  base::write_atomically(folder / "manifest.json", snapshot::format_manifest(manifest));
}

double loss_at(const fs::path& island, int64_t step) {
  for (const base::MetricsRow& row : base::read_metrics(island / "metrics.jsonl"))
    if (row.integer("step") == step) return row.number("loss");
  ADD_FAILURE() << island << " has not trained step " << step;
  return 0;
}

void expect_one_model(const fs::path& run, int islands) {
  for (int island = 1; island < islands; ++island)
    EXPECT_EQ(furthest(model_of(run), model_of(island_of(run, island))), 0) << "island " << island;
}

std::string lines_of(const harness::Run& run) {
  std::string all;
  for (const auto& [rank, lines] : run.log)
    for (const std::string& line : lines) all += line + "\n";
  return all;
}

class SnapshotSentToAnIsland : public testing::TestWithParam<std::pair<const char*, int>> {};

// The last island loses its run directory. Everything must be as if the snapshot of the first one had been copied there by hand.
TEST_P(SnapshotSentToAnIsland, LetsItTrainOnWithItsOwnSamples) {
  const auto [rule, islands] = GetParam();
  const harness::ScratchFolder folder;
  const fs::path sent = folder.path() / "sent", by_hand = folder.path() / "by_hand";
  const base::Recipe recipe = transfer_recipe(islands, rule);
  run_islands(recipe, islands, sent, false);
  for (int island = 0; island < islands; ++island) forget_after(island_of(sent, island), kSaved);
  const fs::path last = island_of(sent, islands - 1), its_copy = island_of(by_hand, islands - 1);
  fs::copy(sent, by_hand, fs::copy_options::recursive);
  fs::remove_all(its_copy / "snapshots");
  fs::copy(by_hand / "snapshots", its_copy / "snapshots", fs::copy_options::recursive);
  fs::remove_all(last);

  const harness::Run resumed = run_islands(recipe, islands, sent, true);
  EXPECT_THAT(lines_of(resumed), HasSubstr(fmt::format("island {} had no snapshot of step 12 and got that of island 0", islands - 1)));
  run_islands(recipe, islands, by_hand, true);
  expect_one_model(sent, islands);
  EXPECT_EQ(furthest(model_of(sent), model_of(by_hand)), 0);
  EXPECT_EQ(loss_at(last, kSaved + 1), loss_at(its_copy, kSaved + 1));
  // Both start from the same weights: only other samples give another loss.
  EXPECT_NE(loss_at(last, kSaved + 1), loss_at(sent, kSaved + 1));
  EXPECT_EQ(base::read_metrics(last / "metrics.jsonl").back().integer("step"), kLast);
}

INSTANTIATE_TEST_SUITE_P(Rules, SnapshotSentToAnIsland,
                         testing::Values(std::pair("diloco", 2), std::pair("diloco", 3), std::pair("streaming_diloco", 2),
                                         std::pair("noloco", 3), std::pair("co2", 2), std::pair("gossip", 3)),
                         [](const auto& one) { return fmt::format("{}_{}", one.param.first, one.param.second); });

TEST(SnapshotTransfer, IsFromTheFurthestIslandWhereACommonStepIsTooFarBehind) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(3, "diloco", {"snapshot.every=2", "snapshot.keep=20"});
  run_islands(recipe, 3, folder.path(), false);
  forget_after(folder.path(), 2);
  forget_after(folder.path() / "island-1", 18);
  forget_after(folder.path() / "island-2", 14);
  const harness::Run resumed = run_islands(recipe, 3, folder.path(), true);
  EXPECT_THAT(lines_of(resumed), HasSubstr("islands 0, 2 had no snapshot of step 18 and got that of island 1"));
  expect_one_model(folder.path(), 3);
}

// Each rank sees its own disk only, also the second rank of an island.
TEST(SnapshotTransfer, ReachesDisksOfAnIslandThatHasNone) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  const TransferRun first{4, [&](int rank) { return folder.path() / (rank < 2 ? "a" : "b"); }, false};
  run_islands(recipe, first);
  ASSERT_FALSE(fs::exists(folder.path() / "a" / "island-1"));
  forget_after(folder.path() / "a", kSaved);
  fs::remove_all(folder.path() / "b");
  const TransferRun apart{4, [&](int rank) { return folder.path() / std::string(1, static_cast<char>("axbc"[rank])); }, true};
  run_islands(recipe, apart);
  for (const char* disk : {"b/island-1", "c/island-1"})
    EXPECT_EQ(snapshot::open(snapshot::step_folder((folder.path() / disk).string(), kSaved)).step(), kSaved) << disk;
  EXPECT_FALSE(fs::exists(snapshot::step_folder((folder.path() / "x").string(), kSaved)));  // loads through the first rank of its island
  EXPECT_EQ(furthest(model_of(folder.path() / "a"), model_of(folder.path() / "b" / "island-1")), 0);
}

// Both ranks of the second island see one disk: one of them writes. The run has no step left, so nothing is saved afterwards.
TEST(SnapshotTransfer, WritesOneCopyOnADiskAlsoAfterTheLastStep) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  run_islands(recipe, 4, folder.path(), false);
  const auto model = model_of(folder.path());
  fs::remove_all(folder.path() / "island-1");
  const harness::Run resumed = run_islands(recipe, 4, folder.path(), true);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path() / "island-1" / "snapshots")) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::ElementsAre("step-00000020"));
  EXPECT_EQ(furthest(model_of(folder.path() / "island-1"), model), 0);
}

TEST(SnapshotTransfer, IsNotFromAnIslandThatTrainedApart) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  run_islands(recipe, 2, folder.path(), false);
  forget_after(folder.path(), kSaved);
  const fs::path apart = folder.path() / "island-1" / "snapshots";
  for (const char* common : {"step-00000012", "step-00000016"}) fs::remove_all(apart / common);
  mark_state(apart / "step-00000020", &RunState::apart);
  const harness::Run resumed = run_islands(recipe, 2, folder.path(), true);
  EXPECT_THAT(lines_of(resumed), HasSubstr("island 1 had no snapshot of step 12 and got that of island 0"));
  EXPECT_EQ(base::read_metrics(folder.path() / "island-1" / "metrics.jsonl").back().integer("step"), kLast);
  expect_one_model(folder.path(), 2);
}

TEST(SnapshotTransfer, IsFromAnIslandThatTrainedApartIfThereIsNoOther) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  run_islands(recipe, 2, folder.path(), false);
  fs::remove_all(folder.path() / "snapshots");
  forget_after(folder.path() / "island-1", kSaved);
  mark_state(folder.path() / "island-1" / "snapshots" / "step-00000012", &RunState::apart);
  const harness::Run resumed = run_islands(recipe, 2, folder.path(), true);
  EXPECT_THAT(lines_of(resumed), HasSubstr("island 0 had no snapshot of step 12 and got that of island 1"));
  expect_one_model(folder.path(), 2);
}

// An island was cut off in the round of step 12, which the others finished: its snapshot of step 12 has another model.
TEST(SnapshotTransfer, ReplacesOneOfTheSameStepThatLacksTheRound) {
  const harness::ScratchFolder folder;
  const fs::path run = folder.path() / "run", other = folder.path() / "other";
  run_islands(transfer_recipe(2, "diloco"), 2, run, false);
  run_islands(transfer_recipe(2, "diloco", {"sync.island.outer_lr=0.3"}), 2, other, false);
  for (const int island : {0, 1}) forget_after(island_of(run, island), kSaved);
  fs::remove_all(run / "snapshots" / "step-00000012");  // the first island is the one that was cut off
  fs::copy(other / "snapshots" / "step-00000012", run / "snapshots" / "step-00000012", fs::copy_options::recursive);
  mark_state(run / "snapshots" / "step-00000012", &RunState::round_unfinished);
  const harness::Run resumed = run_islands(transfer_recipe(2, "diloco"), 2, run, true);
  EXPECT_THAT(lines_of(resumed), HasSubstr("island 0 had no snapshot of step 12 and got that of island 1"));
  expect_one_model(run, 2);
}

TEST(SnapshotTransfer, ClearsUpWhatAKilledCopyLeft) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  run_islands(recipe, 2, folder.path(), false);
  forget_after(folder.path(), kSaved);
  const fs::path snapshots = folder.path() / "island-1" / "snapshots", left = snapshots / ".writing-step-00000012-1";
  fs::remove_all(snapshots);
  fs::create_directories(left / "training");
  std::ofstream(left / "model.safetensors") << "half of it";
  run_islands(recipe, 2, folder.path(), true);
  EXPECT_FALSE(fs::exists(left));
  expect_one_model(folder.path(), 2);
}

TEST(SnapshotTransfer, ReplacesDamagedSnapshots) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = transfer_recipe(2, "diloco");
  run_islands(recipe, 2, folder.path(), false);
  forget_after(folder.path() / "island-1", kSaved);
  for (const snapshot::SnapshotInfo& one : snapshot::list(folder.path().string()))
    std::ofstream(fs::path(one.path) / "model.safetensors") << "damaged";
  run_islands(recipe, 2, folder.path(), true);
  expect_one_model(folder.path(), 2);
  fs::remove_all(folder.path() / "island-1" / "snapshots");
  for (const snapshot::SnapshotInfo& one : snapshot::list(folder.path().string()))
    std::ofstream(fs::path(one.path) / "model.safetensors") << "damaged";
  const TransferRun all_damaged{2, [&](int) { return folder.path(); }, true};
  const harness::Run refused = run_islands(recipe, all_damaged, {.expect_errors = true});
  EXPECT_EQ(refused.error_on(0).kind(), Error::Kind::corrupt_file);
  EXPECT_THAT(refused.error_on(0).what(), HasSubstr("snapshots is whole"));
}

// Islands that gossip have a model each; DiLoCo must begin with one.
TEST(SnapshotTransfer, GivesAllIslandsOneModelWhereTheNextRuleNeedsIt) {
  const harness::ScratchFolder folder;
  run_islands(transfer_recipe(2, "gossip", {"sync.island.every=5"}), 2, folder.path(), false);
  for (const int island : {0, 1}) forget_after(island_of(folder.path(), island), kSaved);
  ASSERT_NE(furthest(model_of(folder.path()), model_of(island_of(folder.path(), 1))), 0);
  run_islands(transfer_recipe(2, "diloco"), 2, folder.path(), true);
  expect_one_model(folder.path(), 2);
}

// The second island dies. The first one ends in the next round, or trains on alone: its snapshot says which.
TEST(IslandsThatLostTheOthers, MarkWhatTheySave) {
  for (const bool alone : {false, true}) {
    const harness::ScratchFolder folder;
    const base::Recipe recipe = transfer_recipe(
        2, "diloco", {alone ? "sync.island.on_minority=continue" : "sync.island.on_minority=wait", "sync.island.timeout_s=1"});
    const TransferRun first{2, [&](int) { return folder.path(); }, false};
    const harness::Run ended = run_islands(recipe, first, {}, harness::Faults().lose({.rank = 1, .before_collective = 20}));
    ASSERT_EQ(ended.faults_fired, 1);
    EXPECT_THAT(ended.error_on(0).what(), HasSubstr(alone ? "this one has trained alone since step" : "no majority of the islands"));
    const fs::path file = fs::path(*snapshot::find_latest(folder.path().string())) / "training/state.json";
    const RunState state = parse_run_state(base::read_file(file, 1 << 20), file.string());
    EXPECT_EQ(state.apart, alone);
    EXPECT_EQ(state.round_unfinished, !alone);
    if (alone) continue;
    EXPECT_LT(state.step, kLast);
    run_islands(recipe, 2, folder.path(), true);
    expect_one_model(folder.path(), 2);
  }
}

}  // namespace
}  // namespace cairn::train
