#include "snapshot/snapshot.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "snapshot/crashing_disk.h"
#include "snapshot/scratch_folder.h"

namespace cairn::snapshot {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A run directory with a recipe, and nothing else yet.
class RunFolder : public ScratchFolder {
 public:
  RunFolder() { std::ofstream(*this / "recipe.toml") << "seed = 1\n"; }
  std::string step(int64_t number) const { return *this / fmt::format("snapshots/step-{:08}", number); }
  // What lies in snapshots/, hidden names included.
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    if (fs::exists(*this / "snapshots"))
      for (const auto& entry : fs::directory_iterator(*this / "snapshots")) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

// A state whose values tell the step it is of.
Contents state(int64_t step) {
  Contents contents{.step = step, .version = "0.1.0"};
  contents.tensors["model"] = {{"embed.weight", at::full({5, 3}, static_cast<double>(step), at::kFloat)},
                               {"norm.weight", at::ones({3}, at::kBFloat16)}};
  contents.tensors["optimizer"] = {{"embed.weight.m", at::full({5, 3}, step + 0.5, at::kFloat)},
                                   {"count", at::scalar_tensor(step, at::kLong)}};
  contents.tensors["sync"] = {};
  contents.texts["config.json"] = R"({"model_type": "llama"})";
  contents.texts["training/state.json"] = fmt::format(R"({{"step": {}}})", step);
  return contents;
}

// The same with as few files as show it, for tests that save hundreds of times.
Contents small_state(int64_t step) {
  Contents contents = state(step);
  contents.tensors.erase("sync");
  contents.texts.erase("config.json");
  return contents;
}

void save_state(const RunFolder& run, int64_t step, int64_t keep = 3) {
  save(run.path(), state(step), {.newest = keep}, base::real_disk());
}

// Whole, and of one step throughout.
void expect_consistent(const OpenSnapshot& opened) {
  const double step = static_cast<double>(opened.step());
  const Safetensors& model = opened.section("model");
  EXPECT_EQ(model.view(*model.find("embed.weight")).sum().item<double>(), 15 * step);
  const Safetensors& optimizer = opened.section("optimizer");
  EXPECT_EQ(optimizer.view(*optimizer.find("embed.weight.m")).sum().item<double>(), 15 * (step + 0.5));
  EXPECT_EQ(opened.text("training/state.json"), fmt::format(R"({{"step": {}}})", opened.step()));
}

int64_t latest_step(const RunFolder& run) {
  base::Log log = base::Log::quiet();
  const std::optional<OpenSnapshot> opened = open_latest(run.path(), log);
  if (!opened) return -1;
  expect_consistent(*opened);
  return opened->step();
}

Error error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return {Error::Kind::cancelled, "nothing was thrown"};
}

// Flips one bit near the end.
void damage(const std::string& path) {
  const auto at = static_cast<std::streamoff>(fs::file_size(path)) - 5;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

TEST(Snapshot, IsAHuggingFaceFolderWithTheTrainingStateBesideIt) {
  const RunFolder run;
  EXPECT_EQ(save(run.path(), state(100), {}, base::real_disk()), run.step(100));
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(run.step(100))) files.push_back(fs::relative(entry.path(), run.step(100)));
  EXPECT_THAT(files, testing::UnorderedElementsAre("config.json", "manifest.json", "model.safetensors", "training",
                                                   "training/optimizer.safetensors", "training/state.json", "training/sync.safetensors"));
  const std::string manifest = base::read_file(run.step(100) + "/manifest.json", 10'000);
  EXPECT_THAT(manifest, HasSubstr(R"("cairn_version": "0.1.0")"));
  EXPECT_THAT(manifest, HasSubstr(R"("format_version": 1)"));
}

TEST(Snapshot, GivesBackTensorsAndTexts) {
  const RunFolder run;
  save_state(run, 7);
  for (const std::string& path : {run.step(7), run.step(7) + "/"}) {
    const OpenSnapshot opened = open(path);
    EXPECT_EQ(opened.step(), 7);
    EXPECT_THAT(opened.sections(), ElementsAre("model", "optimizer", "sync"));
    expect_consistent(opened);
    EXPECT_EQ(opened.text("config.json"), R"({"model_type": "llama"})");
    const mesh::NamedTensors into{{"norm.weight", at::zeros({3}, at::kBFloat16)},
                                  {"embed.weight", at::zeros({3, 5}, at::kFloat).t().requires_grad_()}};
    opened.load_into("model", into);
    EXPECT_TRUE(at::equal(into[0].tensor, at::ones({3}, at::kBFloat16)));
    EXPECT_TRUE(at::equal(into[1].tensor, at::full({5, 3}, 7.0, at::kFloat)));
  }
}

TEST(Snapshot, MovedElsewhereStillOpens) {
  const RunFolder run;
  save_state(run, 7);
  fs::rename(run.step(7), run / "my-best");
  expect_consistent(open(run / "my-best"));
}

TEST(Snapshot, SavesAndLoadsCudaTensors) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const RunFolder run;
  save(run.path(), {.step = 1, .tensors = {{"model", {{"w", at::arange(6, at::kFloat).cuda().view({2, 3}).t()}}}}}, {}, base::real_disk());
  const mesh::NamedTensors into{{"w", at::zeros({3, 2}, at::kFloat).cuda()}};
  open(run.step(1)).load_into("model", into);
  EXPECT_TRUE(at::equal(into[0].tensor.cpu(), at::arange(6, at::kFloat).view({2, 3}).t()));
}

TEST(Snapshot, LoadNamesEverythingThatDoesNotFitAndWritesNothing) {
  const RunFolder run;
  save_state(run, 7);
  const OpenSnapshot opened = open(run.step(7));
  const mesh::NamedTensors into{{"norm.weight", at::zeros({4}, at::kFloat)}, {"head.weight", at::zeros({2})}};
  const Error error = error_of([&] { opened.load_into("model", into); });
  EXPECT_EQ(error.kind(), Error::Kind::bad_input);
  EXPECT_THAT(error.what(),
              HasSubstr("model.safetensors: does not fit what it is loaded into; missing there: head.weight; unknown here: embed.weight; "
                        "different: norm.weight is BF16 [3] there, F32 [4] here"));
  EXPECT_EQ(into[0].tensor.sum().item<float>(), 0);
  EXPECT_THAT(error_of([&] { opened.load_into("ema", into); }).what(), HasSubstr("no section \"ema\" (it has model, optimizer, sync)"));
  EXPECT_THAT(error_of([&] { opened.text("tokenizer.json"); }).what(), HasSubstr("no file tokenizer.json in this snapshot"));
  const Error many = error_of([&] {
    mesh::NamedTensors all;
    for (int i = 0; i < 8; ++i) all.push_back({fmt::format("w{}", i), at::zeros({1})});
    opened.load_into("sync", all);
  });
  EXPECT_THAT(many.what(), HasSubstr("missing there: w0, w1, w2, w3, w4 and 3 more"));
}

TEST(Snapshot, KeepsTheNewestAndClearsLeftovers) {
  const RunFolder run;
  for (const int64_t step : {100, 200, 300}) save_state(run, step, 2);
  EXPECT_THAT(run.folders(), ElementsAre("step-00000200", "step-00000300"));
  fs::create_directories(run / "snapshots/.writing-step-00000400-17/training");
  fs::create_directories(run / "snapshots/.removing-step-00000100");
  save_state(run, 400, 0);
  EXPECT_THAT(run.folders(), ElementsAre("step-00000400"));
}

TEST(Snapshot, DamagedOnesDoNotCountAsKept) {
  const RunFolder run;
  save_state(run, 100);
  save_state(run, 200);
  fs::resize_file(run.step(200) + "/model.safetensors", 10);
  save_state(run, 300, 2);
  EXPECT_THAT(run.folders(), ElementsAre("step-00000100", "step-00000200", "step-00000300"));
  save_state(run, 400, 2);
  EXPECT_THAT(run.folders(), ElementsAre("step-00000300", "step-00000400"));
}

TEST(Snapshot, OfAnEarlierStepEndsTheFutureItLeft) {
  const RunFolder run;
  for (const int64_t step : {100, 200, 300}) save_state(run, step);
  save_state(run, 150);
  EXPECT_THAT(run.folders(), ElementsAre("step-00000100", "step-00000150"));
  EXPECT_EQ(latest_step(run), 150);
}

TEST(Snapshot, OfTheSameStepIsReplaced) {
  const RunFolder run;
  save_state(run, 100);
  Contents again = state(100);
  again.texts["config.json"] = "{}";
  save(run.path(), again, {}, base::real_disk());
  EXPECT_EQ(open(run.step(100)).text("config.json"), "{}");
  EXPECT_THAT(run.folders(), ElementsAre("step-00000100"));
}

TEST(Snapshot, RefusesNamesThatLeaveItsFolder) {
  const RunFolder run;
  for (const std::string name :
       {"../recipe.toml", "/etc/passwd", "training/../x", "a/b", "", "training/", ".hidden", "manifest.json", "model.safetensors"}) {
    Contents contents = state(1);
    contents.texts[name] = "x";
    EXPECT_THAT(error_of([&] { save(run.path(), contents, {}, base::real_disk()); }).what(), HasSubstr("snapshot file \"" + name + "\""))
        << name;
  }
  Contents contents = state(1);
  contents.tensors["../x"] = {};
  EXPECT_THAT(error_of([&] { save(run.path(), contents, {}, base::real_disk()); }).what(), HasSubstr("snapshot section \"../x\""));
  EXPECT_THAT(run.folders(), IsEmpty());
}

TEST(Snapshot, FullDiskIsSaidBeforeAnythingIsWritten) {
  const RunFolder run;
  save_state(run, 100);
  const base::FaultyDisk disk({.free_bytes = 1000});
  const Error error = error_of([&] { save(run.path(), state(200), {}, disk); });
  EXPECT_EQ(error.kind(), Error::Kind::disk);
  EXPECT_THAT(error.what(),
              testing::ContainsRegex(
                  "/snapshots: no room for the snapshot of step 200: it needs 6[0-9]+ bytes \\(.*\\), 1000 bytes \\(.*\\) are free"));
  EXPECT_THAT(run.folders(), ElementsAre("step-00000100"));
  EXPECT_EQ(latest_step(run), 100);
}

TEST(Snapshot, DiskThatFailsOnTheWayLeavesEverythingAsItWas) {
  const RunFolder run;
  save_state(run, 100);
  save_state(run, 200);
  const auto tries = [&](const base::DiskFaults& faults) {
    const base::FaultyDisk disk(faults);
    const Error error = error_of([&] { save(run.path(), state(300), {.newest = 1}, disk); });
    EXPECT_EQ(error.kind(), Error::Kind::disk) << error.what();
    EXPECT_GT(disk.fired(), 0);
    EXPECT_THAT(error.what(), HasSubstr(run / "snapshots"));
    EXPECT_THAT(run.folders(), ElementsAre("step-00000100", "step-00000200"));
    EXPECT_EQ(latest_step(run), 200);
  };
  for (const int64_t bytes : {0, 1, 100, 500, 900}) tries({.full_after_bytes = bytes});
  tries({.error_after_bytes = 300});
  tries({.sync_fails = true});
  tries({.rename_fails = true});
}

// Saves in a process of its own that dies at call number `crash_at`. Whether it did.
bool dies_saving(const RunFolder& run, const Contents& contents, int64_t crash_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    save(run.path(), contents, {.newest = 1}, CrashingDisk(crash_at));
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 9;
}

TEST(Snapshot, DeathAtAnyMomentLeavesTheOldOrTheNewOne) {
  const Contents old_state = small_state(100), new_state = small_state(200);
  int64_t crashes = 0, old_found = 0;
  for (bool died = true; died; ++crashes) {
    const RunFolder run;
    save(run.path(), old_state, {}, CrashingDisk(1'000'000));
    died = dies_saving(run, new_state, crashes);
    const int64_t found = latest_step(run);
    EXPECT_TRUE(found == 100 || found == 200) << "died at call " << crashes;
    old_found += found == 100;
    EXPECT_EQ(died || found == 200, true);
    save(run.path(), small_state(300), {.newest = 1}, CrashingDisk(1'000'000));  // and the next save clears up
    EXPECT_THAT(run.folders(), ElementsAre("step-00000300")) << "died at call " << crashes;
  }
  EXPECT_GT(crashes, 25);
  EXPECT_GT(old_found, 20);
  EXPECT_LT(old_found, crashes - 1);  // some died after the new one was in place
}

TEST(Snapshot, DeathWhileReplacingTheSameStepLeavesOneOfThem) {
  const Contents first = small_state(100), second = small_state(100);
  bool found_aside = false;
  for (int64_t crash = 0, died = true; died; ++crash) {
    const RunFolder run;
    save(run.path(), first, {}, CrashingDisk(1'000'000));
    died = dies_saving(run, second, crash);
    found_aside = found_aside || !fs::exists(run.step(100));
    EXPECT_EQ(latest_step(run), 100) << "died at call " << crash;
    save(run.path(), second, {}, CrashingDisk(1'000'000));
    EXPECT_THAT(run.folders(), ElementsAre("step-00000100")) << "died at call " << crash;
  }
  EXPECT_TRUE(found_aside);  // the moment between the two renames was among them
}

TEST(Snapshot, LatestPassesOverDamagedOnesAndSaysWhichFileAndWhy) {
  const RunFolder run;
  for (const int64_t step : {100, 200, 300, 400}) save_state(run, step, 9);
  damage(run.step(400) + "/training/optimizer.safetensors");
  fs::resize_file(run.step(300) + "/model.safetensors", 50);
  fs::remove(run.step(200) + "/training/state.json");
  base::Log log = base::Log::capture();
  const std::optional<OpenSnapshot> opened = open_latest(run.path(), log);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->step(), 100);
  const std::vector<std::string> lines = log.lines();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(lines[0],
              testing::ContainsRegex("warn: snapshot of step 400 .*optimizer.safetensors: checksum [0-9a-f]+, the manifest says"));
  EXPECT_THAT(lines[1], HasSubstr("step-00000300/model.safetensors: 50 bytes long, the manifest says"));
  EXPECT_THAT(lines[2], HasSubstr("step-00000200/training/state.json: missing"));
}

TEST(Snapshot, LatestTellsNoneFromNotARunFromAllDamaged) {
  const RunFolder run;
  base::Log log = base::Log::quiet();
  EXPECT_FALSE(open_latest(run.path(), log));
  const ScratchFolder other;
  const Error not_a_run = error_of([&] { open_latest(other.path(), log); });
  EXPECT_EQ(not_a_run.kind(), Error::Kind::bad_input);
  EXPECT_EQ(not_a_run.sentence(), other.path() + ": not a run directory (no recipe.toml there)");
  EXPECT_THAT(error_of([&] { open_latest(other / "absent", log); }).what(), HasSubstr("absent: not a run directory (no such folder)"));
  save_state(run, 5);
  fs::remove(run.step(5) + "/manifest.json");
  EXPECT_THAT(error_of([&] { find_latest(run.path()); }).what(), HasSubstr("none of its"));
  const Error damaged = error_of([&] { open_latest(run.path(), log); });
  EXPECT_EQ(damaged.kind(), Error::Kind::corrupt_file);
  EXPECT_THAT(damaged.what(), HasSubstr("none of its 1 snapshots is whole; the newest: " + run.step(5) + "/manifest.json: missing"));
}

TEST(Snapshot, ListGivesStepsAndSizesOldestFirst) {
  const RunFolder run;
  EXPECT_THAT(list(run.path()), IsEmpty());
  save_state(run, 20);
  save_state(run, 123'456'789);
  fs::create_directories(run / "snapshots/step-7");  // no name of ours
  const std::vector<SnapshotInfo> listed = list(run.path());
  ASSERT_EQ(listed.size(), 2);
  EXPECT_EQ(listed[0].step, 20);
  EXPECT_EQ(listed[1].step, 123'456'789);
  EXPECT_EQ(listed[1].path, run / "snapshots/step-123456789");
  int64_t bytes = 0;
  for (const char* file : {"config.json", "manifest.json", "model.safetensors", "training/optimizer.safetensors", "training/state.json",
                           "training/sync.safetensors"})
    bytes += static_cast<int64_t>(fs::file_size(fs::path(run.step(20)) / file));
  EXPECT_EQ(listed[0].bytes, bytes);
}

}  // namespace
}  // namespace cairn::snapshot
