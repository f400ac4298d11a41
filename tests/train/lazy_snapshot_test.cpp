// Snapshots that are copied while training goes on (snapshot.mode = "lazy"): they hold the state of their step, whatever comes late.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_count.h"
#include "base/files.h"
#include "base/files/disk.h"
#include "base/files/faulty_disk.h"
#include "base/metrics.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "save_now.h"
#include "small_decoder.h"
#include "snapshot/options.h"
#include "train/build.h"
#include "train/state/lazy_forecast.h"
#include "train/state/rewind.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

base::Recipe lazy_recipe(const Sets& more = {}, const std::string& mode = "lazy") {
  Sets sets{"train.steps=6", "snapshot.every=2", "snapshot.keep=9", "snapshot.mode=" + mode};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

std::map<std::string, std::string> saved_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "pieces.json")
      files[fs::relative(entry.path(), folder)] = base::read_file(entry.path(), 1 << 28);
  return files;
}

void step_once(Job& job) {
  take_step(job);
  ++job.progress.steps_done;
}

// Delays each copy, so that the copies of a save take longer than several steps of this small model.
void slowly(size_t) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, std::chrono::milliseconds(1), [] { return false; });
}

// Takes steps on so many ranks and saves every other one. Returns the bytes of host memory that saves took on rank 0.
int64_t saves_of(const std::string& mode, int ranks, const Sets& sets, const fs::path& out, bool with_barrier = true) {
  int64_t peak = 0;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, lazy_recipe(sets, mode), {.out = out, .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk(), slowly);
    if (!with_barrier) job->barrier.attach(nullptr);
    for (int step = 1; step <= 6; ++step) {
      step_once(*job);
      if (step % 2 == 0) writer.save();
    }
    step_once(*job);  // while the last one is copied
    writer.finish();
    writer.rethrow_failure();
    if (world.rank() == 0) peak = job->instruments.memory->of(base::MemoryUse::snapshot).peak;
  });
  return peak;
}

// Every file of a lazy run is compared with that of a run whose saves are complete before training goes on.
TEST(LazySnapshot, HoldsTheStateOfItsStepThoughCopiesAreLate) {
  for (const auto& [name, ranks, sets] : std::vector<std::tuple<std::string, int, Sets>>{
           {"one", 1, {"train.steps=7"}},
           {"sgd", 1, {"train.steps=7", "optim.kind=sgd"}},
           {"three ranks", 3, {"train.steps=7"}},
           {"zero 1", 2, {"train.steps=7", "memory.zero=1"}},
           {"zero 2", 2, {"train.steps=7", "memory.zero=2"}},
           {"zero 3", 3, {"train.steps=7", "memory.zero=3"}},
           {"tp", 2, {"train.steps=7", "mesh.tp=2"}},
           {"cp", 2, {"train.steps=7", "mesh.cp=2", "data.length=20"}},
           {"pp, muon", 2, {"train.steps=7", "mesh.pp=2", "optim.kind=muon"}},
           {"adafactor", 2, {"train.steps=7", "optim.kind=adafactor", "mesh.tp=2"}},
           {"bf16", 2, {"train.steps=7", "train.parameters=bf16", "train.precision=bf16", "memory.zero=1"}}}) {
    const harness::ScratchFolder scratch;
    saves_of("sync", ranks, sets, scratch / "sync");
    saves_of("lazy", ranks, sets, scratch / "lazy");
    const auto expected = saved_files(scratch / "sync"), found = saved_files(scratch / "lazy");
    EXPECT_GE(expected.size(), 9u) << name;
    EXPECT_TRUE(found == expected) << name;
    EXPECT_NE(expected.at("snapshots/step-00000002/model.safetensors"), expected.at("snapshots/step-00000004/model.safetensors")) << name;
  }
}

// The rules between islands change parameters, anchors, momenta and what is in flight.
TEST(LazySnapshot, RulesBetweenIslandsWaitForWhatTheyChange) {
  const Sets island{"train.steps=8", "mesh.island=2"};
  for (const Sets& rule : std::vector<Sets>{
           {"sync.island.kind=diloco", "sync.island.every=2"},
           {"sync.island.kind=streaming_diloco", "sync.island.every=3", "sync.island.delay=1", "sync.island.fragment_layers=2"},
           {"sync.island.kind=co2", "sync.island.every=2"},
           {"sync.island.kind=noloco", "sync.island.every=1"},
           {"sync.island.kind=gossip", "sync.island.every=1", "sync.island.neighbours=1"}}) {
    Sets sets = island;
    sets.insert(sets.end(), rule.begin(), rule.end());
    const harness::ScratchFolder scratch;
    saves_of("sync", 2, sets, scratch / "sync");
    saves_of("lazy", 2, sets, scratch / "lazy");
    EXPECT_TRUE(saved_files(scratch / "lazy") == saved_files(scratch / "sync")) << rule.front();
  }
}

TEST(LazySnapshot, StepsWithAnUpdateOfTheirOwnWaitForWhatTheyChange) {
  for (const Sets& method :
       std::vector<Sets>{{"train.method=masha1", "optim.learning_rate=0.3", "train.masha.refresh=0.5", "train.masha.precondition=adam",
                          "train.masha.refresh_batches=1"},
                         {"train.method=masha2", "optim.learning_rate=0.3", "train.masha.refresh=0.5", "train.masha.adversary=embedding"},
                         {"train.method=one_byte", "train.one_byte.samples_per_round=2", "optim.learning_rate=1e-3"}}) {
    Sets sets{"train.steps=9"};
    sets.insert(sets.end(), method.begin(), method.end());
    const harness::ScratchFolder scratch;
    saves_of("sync", 2, sets, scratch / "sync");
    saves_of("lazy", 2, sets, scratch / "lazy");
    const auto expected = saved_files(scratch / "sync");
    EXPECT_TRUE(saved_files(scratch / "lazy") == expected) << method.front();
    EXPECT_NE(expected.at("snapshots/step-00000002/model.safetensors"), expected.at("snapshots/step-00000004/model.safetensors"));
  }
}

// The tests above can fail: without the barrier a snapshot mixes the states of several steps.
TEST(LazySnapshot, WithoutTheBarrierItWouldMixSteps) {
  const harness::ScratchFolder scratch;
  saves_of("sync", 1, {"train.steps=7"}, scratch / "sync");
  saves_of("lazy", 1, {"train.steps=7"}, scratch / "lazy", /*with_barrier=*/false);
  const auto expected = saved_files(scratch / "sync"), found = saved_files(scratch / "lazy");
  const std::string rank = "snapshots/step-00000002/training/rank-00000.safetensors";
  ASSERT_TRUE(found.contains(rank));
  EXPECT_EQ(found.at(rank).size(), expected.at(rank).size());
  EXPECT_NE(found.at(rank), expected.at(rank));
}

TEST(LazySnapshot, ASmallRingIsCorrectAndTakesNoMoreMemory) {
  const harness::ScratchFolder scratch;
  saves_of("sync", 1, {"train.steps=7"}, scratch / "sync");
  const int64_t state = saves_of("lazy", 1, {"train.steps=7"}, scratch / "whole");
  const int64_t quarter = std::max<int64_t>(state / 5, 66'000);  // a ring of 1.25 times the state, by default
  const int64_t peak = saves_of("lazy", 1, {"train.steps=7", fmt::format("snapshot.host_bytes={}", quarter)}, scratch / "quarter");
  EXPECT_TRUE(saved_files(scratch / "quarter") == saved_files(scratch / "sync"));
  EXPECT_LE(peak, quarter);
  EXPECT_GT(peak, 0);
}

// A disk on which writes wait until the test allows them, and which counts direct I/O.
class LazyTestDisk final : public base::Disk {
 public:
  explicit LazyTestDisk(bool allowed) : allowed_(allowed) {}
  void allow() const {
    allowed_ = true;
    allowed_.notify_all();
  }
  int64_t directly() const { return direct_bytes_; }
  int create(const fs::path& path) const override { return real_.create(path); }
  int append(const fs::path& path) const override { return real_.append(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override { return allowed_.wait(false), real_.write(file, bytes); }
  int open_shared(const fs::path& path) const override { return real_.open_shared(path); }
  int open_direct(const fs::path& path) const override {
    const int file = real_.open_direct(path);
    if (file >= 0 && file < 4096) direct_[static_cast<size_t>(file)] = true;
    return file;
  }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    allowed_.wait(false);
    const int64_t written = real_.write_at(file, bytes, offset);
    if (written > 0 && direct_[static_cast<size_t>(file)]) direct_bytes_ += written;
    return written;
  }
  int resize(int file, int64_t bytes) const override { return real_.resize(file, bytes); }
  int sync(int file) const override { return real_.sync(file); }
  int close(int file) const override {
    direct_[static_cast<size_t>(file)] = false;
    return real_.close(file);
  }
  int rename(const fs::path& from, const fs::path& to) const override { return real_.rename(from, to); }
  int remove(const fs::path& path) const override { return real_.remove(path); }
  int sync_folder(const fs::path& folder) const override { return real_.sync_folder(folder); }
  int64_t free_bytes(const fs::path& folder) const override { return real_.free_bytes(folder); }

 private:
  const base::Disk& real_ = base::real_disk();
  mutable std::atomic<bool> allowed_;
  mutable std::array<std::atomic<bool>, 4096> direct_{};
  mutable std::atomic<int64_t> direct_bytes_{0};
};

// A ring that takes everything: training never waits for the disk, not even for one that takes nothing.
TEST(LazySnapshot, NeverWaitsForTheDisk) {
  const harness::ScratchFolder scratch;
  const LazyTestDisk disk(false);
  harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, lazy_recipe(), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), disk);
    step_once(*job);
    writer.save();
    for (int i = 0; i < 3; ++i) step_once(*job);
    EXPECT_FALSE(fs::exists(scratch / "run" / "snapshots" / "step-00000001"));
    job->engine.step_group->barrier("test").wait_host();
    disk.allow();
    writer.finish();
    EXPECT_TRUE(fs::exists(scratch / "run" / "snapshots" / "step-00000001" / "manifest.json"));
    EXPECT_GT(writer.take_held_up_s(), 0);
    const sync::StepMetrics metrics = writer.take_metrics();
    EXPECT_GT(sync::metric(metrics, "snapshot_bytes"), 0);
    EXPECT_LE(sync::metric(metrics, "snapshot_copy_s"), sync::metric(metrics, "snapshot_write_s"));
    EXPECT_LE(sync::metric(metrics, "snapshot_write_s"), sync::metric(metrics, "snapshot_commit_s"));
  });
}

TEST(LazySnapshot, UnderPressureASaveIsLeftOutIfTheRecipeSaysSo) {
  const harness::ScratchFolder scratch;
  const LazyTestDisk disk(false);
  const harness::Run ended = harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<Job> job =
        build(world, lazy_recipe({"snapshot.on_pressure=skip"}), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), disk);
    for (int i = 0; i < 2; ++i) {
      step_once(*job);
      writer.save();
    }
    step_once(*job);
    if (world.rank() == 0) disk.allow();
    writer.save(/*last=*/true);  // waits for the first one
    writer.finish();
    writer.rethrow_failure();
  });
  EXPECT_THAT(ended.log.at(0),
              testing::Contains(
                  HasSubstr("warn: the snapshot of step 2 is left out: that of step 1 is still being written (snapshot.on_pressure)")));
  EXPECT_TRUE(fs::exists(scratch / "run" / "snapshots" / "step-00000001" / "manifest.json"));
  EXPECT_FALSE(fs::exists(scratch / "run" / "snapshots" / "step-00000002"));
  EXPECT_TRUE(fs::exists(scratch / "run" / "snapshots" / "step-00000003" / "manifest.json"));
}

TEST(LazySnapshot, AFullDiskCostsThatVersionOnly) {
  const harness::ScratchFolder scratch;
  base::FaultyDisk disk({.full_after_bytes = 50'000});
  const harness::Run ended = harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job =
        build(world, lazy_recipe({"snapshot.host_bytes=120000"}), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), disk);
    step_once(*job);
    writer.save();
    for (int i = 0; i < 2; ++i) step_once(*job);  // the ring is smaller than the state: it must be drained
    writer.finish();
    EXPECT_THROW(writer.rethrow_failure(), Error);
    disk.recover();
    save_now(*job, scratch / "sync", base::real_disk());
    writer.save();
    step_once(*job);
    writer.finish();
    EXPECT_NO_THROW(writer.rethrow_failure());
  });
  EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("warn: the snapshot of step 1 was not saved: ")));
  EXPECT_FALSE(fs::exists(scratch / "run" / "snapshots" / "step-00000001"));
  EXPECT_TRUE(saved_files(scratch / "run") == saved_files(scratch / "sync"));
}

// One rank of several cannot write: nobody has the version, and all go on.
TEST(LazySnapshot, OneRankWithoutADiskAbortsTheVersionOfAll) {
  const harness::ScratchFolder scratch;
  const base::FaultyDisk full({.full_after_bytes = 20'000});
  const harness::Run ended = harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, lazy_recipe(), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), world.rank() == 1 ? static_cast<const base::Disk&>(full) : base::real_disk());
    step_once(*job);
    writer.save();
    step_once(*job);
    writer.finish();
    EXPECT_THROW(writer.rethrow_failure(), Error) << world.rank();
  });
  EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("warn: the snapshot of step 1 was not saved: ")));
  EXPECT_FALSE(fs::exists(scratch / "run" / "snapshots" / "step-00000001"));
}

TEST(LazySnapshot, DirectWritesGiveTheSameFilesInEveryMode) {
  const harness::ScratchFolder scratch;
  saves_of("sync", 1, {"train.steps=7", "model.mlp=4096", "snapshot.direct_io=false"}, scratch / "plain");
  for (const std::string mode : {"lazy", "sync", "async"}) {
    const LazyTestDisk disk(true);
    harness::on_ranks(1, [&](comm::World& world) {
      const std::unique_ptr<Job> job = build(world, lazy_recipe({"train.steps=7", "model.mlp=4096", fmt::format("snapshot.mode={}", mode)}),
                                             {.out = scratch / mode, .cache = {}, .terminal = nullptr}, {});
      SnapshotWriter writer(*job, world.log(), world.wall(), disk);
      for (int step = 1; step <= 6; ++step) {
        step_once(*job);
        if (step % 2 == 0) writer.save();
      }
      writer.finish();
      writer.rethrow_failure();
    });
    EXPECT_TRUE(saved_files(scratch / mode) == saved_files(scratch / "plain")) << mode;
    if (mode == "lazy" && disk.directly() == 0) GTEST_SKIP() << "no direct I/O on this file system";
    EXPECT_GT(disk.directly(), 3 * 50'000) << mode;
  }
}

TEST(LazySnapshot, ARollbackWaitsForAllCopies) {
  const harness::ScratchFolder scratch;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job =
        build(world, lazy_recipe({"train.steps=9"}), {.out = scratch / "lazy", .cache = {}, .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk(), slowly);
    Rewind rewind;
    rewind.keep(*job);
    for (int i = 0; i < 2; ++i) step_once(*job);
    save_now(*job, scratch / "sync", base::real_disk());
    writer.save();
    rewind.back(*job, 3);
    writer.finish();
    EXPECT_TRUE(saved_files(scratch / "lazy") == saved_files(scratch / "sync"));
  });
}

TEST(LazySnapshot, WholeRunsGiveTheLossesAndFilesOfSync) {
  const harness::ScratchFolder scratch;
  const std::vector<double> losses = losses_on(2, lazy_recipe({}, "sync"), scratch / "sync");
  EXPECT_EQ(losses_on(2, lazy_recipe(), scratch / "lazy"), losses);
  EXPECT_TRUE(saved_files(scratch / "lazy") == saved_files(scratch / "sync"));
  bool counted = false;
  for (const base::MetricsRow& row : base::read_metrics(scratch / "lazy" / "metrics.jsonl")) {
    const int64_t step = row.integer("step");
    EXPECT_EQ(row.has("snapshot_s"), step == 3 || step == 5) << step;
    counted = counted || row.has("snapshot_copy_s");
  }
  EXPECT_TRUE(counted);
  fs::remove_all(scratch / "lazy" / "snapshots" / "step-00000006");
  EXPECT_EQ(losses_on(2, lazy_recipe(), scratch / "lazy", /*resume=*/true), losses);
}

TEST(LazySnapshot, ARateLimitHoldsForEveryMode) {
  for (const std::string mode : {"sync", "lazy"}) {
    const harness::ScratchFolder scratch;
    const auto begun = std::chrono::steady_clock::now();
    int64_t bytes = 0;
    harness::on_ranks(1, [&](comm::World& world) {
      const std::unique_ptr<Job> job = build(world, lazy_recipe({"snapshot.write_bytes_per_s=2000000"}, mode),
                                             {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
      SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
      writer.save();
      writer.finish();
    });
    for (const auto& [name, text] : saved_files(scratch / "run")) bytes += static_cast<int64_t>(text.size());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    EXPECT_GE(took.count(), static_cast<double>(bytes) / 2e6 - 0.1) << mode;
  }
}

TEST(LazySnapshot, RefusesARingThatDoesNotTakeTwoBlocks) {
  const auto refused = [](const std::string& size) {
    const harness::ScratchFolder scratch;
    const harness::Run ended = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) {
      const std::unique_ptr<Job> job =
          build(world, lazy_recipe({"snapshot.host_bytes=" + size}), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
      SnapshotWriter(*job, world.log(), world.wall(), base::real_disk());
      throw Error(Error::Kind::cancelled, "taken");
    });
    return std::string(ended.error_on(0).what());
  };
  EXPECT_THAT(refused("1000B"), HasSubstr("snapshot.host_bytes = \"1000B\": the largest block has "));
  EXPECT_THAT(refused("much"), HasSubstr("snapshot.host_bytes = \"much\": not a size. Use \"auto\""));
  EXPECT_THAT(refused("100TiB"), HasSubstr("more than 80 % of its memory"));
  EXPECT_THAT(refused("300KiB"), HasSubstr("taken"));
}

TEST(LazySnapshot, ReadsSizes) {
  EXPECT_EQ(base::parse_bytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(base::parse_bytes("1.5 GB"), 1'500'000'000);
  EXPECT_EQ(base::parse_bytes("4096"), 4096);
  for (const char* text : {"", "GiB", "-1", "1 XB", "1e300", "nan", "auto"}) EXPECT_FALSE(base::parse_bytes(text)) << text;
}

TEST(LazySnapshot, ForecastsStallsFromRates) {
  const LazyForecast fits =
      forecast({.state_bytes = 96e6, .ring_bytes = 120e6, .copy_rate = 1e9, .write_rate = 1e8, .window_s = 0.2, .step_s = 0.3});
  EXPECT_NEAR(fits.copy_s, 0.096, 1e-9);
  EXPECT_EQ(fits.stall_s, 0);
  EXPECT_EQ(fits.sustainable_steps, 4);  // 0.96 s of writing
  const LazyForecast full =
      forecast({.state_bytes = 96e6, .ring_bytes = 24e6, .copy_rate = 1e9, .write_rate = 1e8, .window_s = 0.2, .step_s = 0.3});
  const double fills = 24e6 / 9e8;
  EXPECT_NEAR(full.copy_s, fills + (96e6 - 1e9 * fills) / 1e8, 1e-9);
  EXPECT_NEAR(full.stall_s, full.copy_s - 0.2, 1e-9);
}

TEST(LazySnapshot, CopiesWhatIsOnAGpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const harness::ScratchFolder scratch;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job =
        build(world, lazy_recipe(), {.out = scratch / "lazy", .cache = {}, .device = "cuda", .terminal = nullptr}, {});
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk(), slowly);
    for (int step = 1; step <= 3; ++step) {
      step_once(*job);
      save_now(*job, scratch / "sync", base::real_disk());
      writer.save();
    }
    step_once(*job);
    writer.finish();
    EXPECT_TRUE(saved_files(scratch / "lazy") == saved_files(scratch / "sync"));
  });
}

}  // namespace
}  // namespace cairn::train
