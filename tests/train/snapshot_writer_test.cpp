// Snapshots that are written in the background: the same files, no lost failure, no rank that waits.
#include "train/state/snapshot_writer.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
#include "train/build.h"
#include "train/state/restore.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

base::Recipe saving(const std::string& mode, const Sets& more = {}) {
  Sets sets{"train.steps=6", "snapshot.every=2", "snapshot.keep=9", "snapshot.mode=" + mode};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

// Every file of tensors below, by its path there.
std::map<std::string, std::string> tensor_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files[fs::relative(entry.path(), folder)] = base::read_file(entry.path(), 1 << 28);
  return files;
}

// A job on this world, and a step of it.
std::unique_ptr<Job> job_on(comm::World& world, const fs::path& out, const std::string& mode = "async", const std::string& device = "cpu") {
  return build(world, saving(mode), {.out = out, .cache = {}, .device = device, .terminal = nullptr}, {});
}

// For a world of one rank.
void save_at_once(Job& job, const fs::path& run_dir, const base::Disk& disk) {
  save_now(job, run_dir, disk);
}

void train_one(Job& job) {
  take_step(job);
  ++job.progress.steps_done;
}

// The real disk, on which writes wait until the test allows them.
class GatedDisk final : public base::Disk {
 public:
  void allow() const {
    allowed_ = true;
    allowed_.notify_all();
  }
  void forbid() const { allowed_ = false; }
  int create(const fs::path& path) const override { return real_.create(path); }
  int append(const fs::path& path) const override { return real_.append(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override { return allowed_.wait(false), real_.write(file, bytes); }
  int open_shared(const fs::path& path) const override { return real_.open_shared(path); }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    return allowed_.wait(false), real_.write_at(file, bytes, offset);
  }
  int resize(int file, int64_t bytes) const override { return real_.resize(file, bytes); }
  int sync(int file) const override { return real_.sync(file); }
  int close(int file) const override { return real_.close(file); }
  int rename(const fs::path& from, const fs::path& to) const override { return real_.rename(from, to); }
  int remove(const fs::path& path) const override { return real_.remove(path); }
  int sync_folder(const fs::path& folder) const override { return real_.sync_folder(folder); }
  int64_t free_bytes(const fs::path& folder) const override { return real_.free_bytes(folder); }

 private:
  const base::Disk& real_ = base::real_disk();
  mutable std::atomic<bool> allowed_ = false;
};

TEST(SnapshotWriter, GivesTheSameFilesInTheBackground) {
  for (const auto& [name, ranks, sets] : std::vector<std::tuple<std::string, int, Sets>>{
           {"one", 1, {}},
           {"two", 2, {}},
           {"shards", 2, {"memory.zero=3"}},
           {"stages", 2, {"mesh.pp=2", "optim.kind=muon"}},
           {"islands", 2, {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=2"}}}) {
    const harness::ScratchFolder scratch;
    const std::vector<double> losses = losses_on(ranks, saving("sync", sets), scratch / "sync");
    EXPECT_EQ(losses_on(ranks, saving("async", sets), scratch / "async"), losses) << name;
    const auto expected = tensor_files(scratch / "sync"), found = tensor_files(scratch / "async");
    EXPECT_GE(expected.size(), 6u) << name;
    for (const char* file : {"snapshots/step-00000002/model.safetensors", "snapshots/step-00000004/training/rank-00000.safetensors",
                             "snapshots/step-00000006/model.safetensors"})
      EXPECT_TRUE(expected.contains(file)) << name << ": " << file;
    EXPECT_TRUE(found == expected) << name;
    EXPECT_NE(expected.at("snapshots/step-00000002/model.safetensors"), expected.at("snapshots/step-00000004/model.safetensors"));
  }
}

TEST(SnapshotWriter, RunsGoOnFromWhatItWrote) {
  const harness::ScratchFolder scratch;
  const std::vector<double> losses = losses_on(2, saving("async"), scratch / "run");
  fs::remove_all(scratch / "run" / "snapshots" / "step-00000006");
  EXPECT_EQ(losses_on(2, saving("async"), scratch / "run", /*resume=*/true), losses);
}

TEST(SnapshotWriter, TrainingGoesOnWhileItWritesWhatWas) {
  const harness::ScratchFolder scratch;
  const GatedDisk disk;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "async");
    SnapshotWriter writer(*job, world.log(), world.wall(), disk);
    train_one(*job);
    save_at_once(*job, scratch / "sync", base::real_disk());
    writer.save();
    EXPECT_GT(writer.take_held_up_s(), 0);
    EXPECT_EQ(writer.take_held_up_s(), 0);
    for (int i = 0; i < 3; ++i) {
      writer.rethrow_failure();
      train_one(*job);
    }
    EXPECT_FALSE(fs::exists(scratch / "async" / "snapshots" / "step-00000001"));
    disk.allow();
    writer.finish();
    EXPECT_TRUE(tensor_files(scratch / "async") == tensor_files(scratch / "sync"));
    save_at_once(*job, scratch / "later", base::real_disk());
    EXPECT_NE(tensor_files(scratch / "later" / "snapshots" / "step-00000004"),
              tensor_files(scratch / "sync" / "snapshots" / "step-00000001"));
  });
}

TEST(SnapshotWriter, OtherRanksDoNotWaitForTheDisk) {
  const harness::ScratchFolder scratch;
  const GatedDisk disk;
  harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "run");
    SnapshotWriter writer(*job, world.log(), world.wall(), disk);
    train_one(*job);
    writer.save();
    train_one(*job);
    if (world.rank() == 1) disk.allow();  // not reached if rank 1 waited for the disk
    writer.finish();
    EXPECT_TRUE(fs::exists(scratch / "run" / "snapshots" / "step-00000001" / "manifest.json"));
  });
}

TEST(SnapshotWriter, UsesItsMemoryAgainAndBooksIt) {
  const harness::ScratchFolder scratch;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "run");
    const auto booked = [&] { return job->instruments.memory->of(base::MemoryUse::snapshot).now; };
    const int64_t state =
        job->instruments.memory->of(base::MemoryUse::parameters).now + job->instruments.memory->of(base::MemoryUse::optimizer).now;
    {
      SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
      const int64_t at_start = booked();
      EXPECT_GE(at_start, state);
      EXPECT_LT(at_start, state + state / 10);
      train_one(*job);
      writer.save();
      const int64_t once = booked();
      train_one(*job);
      writer.save();
      EXPECT_EQ(booked(), once);
      EXPECT_LT(once, at_start + at_start / 10);
    }
    EXPECT_EQ(booked(), 0);
  });
}

// Memory for the state of islands beside the model is allocated at the start too.
TEST(SnapshotWriter, HasRoomForWhatIslandsKeep) {
  const harness::ScratchFolder scratch;
  harness::on_ranks(2, [&](comm::World& world) {
    const std::unique_ptr<Job> job =
        build(world, saving("async", {"mesh.island=2", "sync.island.kind=co2", "sync.island.every=2", "train.spike_factor=5"}),
              {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    const auto booked = [&] { return job->instruments.memory->of(base::MemoryUse::snapshot).now; };
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
    const int64_t at_start = booked();
    EXPECT_GT(at_start, 2 * (job->instruments.memory->of(base::MemoryUse::parameters).now +
                             job->instruments.memory->of(base::MemoryUse::optimizer).now));
    train_one(*job);
    writer.save();
    EXPECT_EQ(booked(), at_start);
    writer.finish();
  });
}

// Islands may be two snapshots apart, and need a common one to resume from.
TEST(SnapshotWriter, IslandsKeepEnough) {
  const auto refused = [](const std::string& mode, int keep) {
    const base::Recipe recipe =
        saving(mode, {"mesh.island=2", "sync.island.kind=co2", "sync.island.every=2", fmt::format("snapshot.keep={}", keep)});
    try {
      check_recipe(recipe, 2, nullptr);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("async", 2), HasSubstr("use 3 or more, or snapshot.mode = sync"));
  EXPECT_EQ(refused("async", 3), "");
  EXPECT_EQ(refused("sync", 1), "");
}

// A clock that advances by a second with each call. At the second call of a save, the save must wait for the disk: writing is allowed then,
// and forbidden again at the next call.
class WaitingClock final : public base::Clock {
 public:
  explicit WaitingClock(const GatedDisk& disk) : disk_(disk) {}
  void save_begins() const { asked_ = 0; }
  std::chrono::nanoseconds now() const override {
    ++asked_;
    if (asked_ == 2) disk_.allow();
    if (asked_ == 3) disk_.forbid();
    return std::chrono::seconds(++now_s_);
  }

 private:
  const GatedDisk& disk_;
  mutable int asked_ = 10, now_s_ = 0;
};

// The log of three saves, so many steps apart, each of which has to wait for the previous one.
std::vector<std::string> said_of_a_slow_disk(int steps_apart) {
  const harness::ScratchFolder scratch;
  const GatedDisk disk;
  const WaitingClock clock(disk);
  const harness::Run ended = harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "run");
    SnapshotWriter writer(*job, world.log(), clock, disk);
    for (int saves = 0; saves < 3; ++saves) {
      for (int i = 0; i < steps_apart; ++i) train_one(*job);
      if (saves > 0) clock.save_begins();
      writer.save();
      if (saves == 0) {
        EXPECT_EQ(writer.take_held_up_s(), 1);
      }
    }
    disk.allow();
    writer.finish();
    EXPECT_EQ(tensor_files(scratch / "run").size(), 6u);
  });
  return ended.log.at(0);
}

TEST(SnapshotWriter, SaysOnceWhenTheDiskIsTooSlow) {
  EXPECT_THAT(
      said_of_a_slow_disk(2),
      testing::ElementsAre(HasSubstr("warn: snapshot of step 4 waited 1.0 s for that of step 2: the disk is slower than snapshot.every")));
  EXPECT_THAT(said_of_a_slow_disk(1), testing::IsEmpty());  // as when a run ends right after a save: snapshot.every is 2
}

// Returns when the background save has ended, within a minute at most.
void wait_for_the_thread(SnapshotWriter& writer, const base::Log& log) {
  const base::RealClock clock;
  const size_t before = log.lines().size();
  while (clock.now() < std::chrono::minutes(1) && log.lines().size() == before) {
    writer.notice_failure();
    std::this_thread::yield();
  }
}

TEST(SnapshotWriter, FailuresInTheBackgroundAreNoticedWhereverTheyEnd) {
  const harness::ScratchFolder scratch;
  const base::FaultyDisk full({.full_after_bytes = 1000});
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "run");
    std::string expected;
    try {
      save_at_once(*job, scratch / "run", full);
    } catch (const Error& error) {
      expected = error.what();
      EXPECT_EQ(error.kind(), Error::Kind::disk);
    }
    EXPECT_THAT(expected, HasSubstr("step-00000000"));
    base::Log log = base::Log::capture();
    SnapshotWriter writer(*job, log, world.wall(), full);
    const auto warns = [&](const auto& act) {
      const size_t before = log.lines().size();
      writer.save();
      act();
      ASSERT_EQ(log.lines().size(), before + 1);
      EXPECT_THAT(log.lines().back(), HasSubstr("warn: the snapshot of step 0 was not saved: " + expected));
    };
    warns([&] { wait_for_the_thread(writer, log); });
    warns([&] { writer.finish(); });
    EXPECT_THROW(writer.rethrow_failure(), Error);
  });
}

TEST(SnapshotWriter, ARunThatEndsForAnotherReasonSaysWhatWasNotSaved) {
  const harness::ScratchFolder scratch;
  const base::FaultyDisk full({.full_after_bytes = 1000});
  const harness::Run ended = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "run");
    SnapshotWriter writer(*job, world.log(), world.wall(), full);
    writer.save();
    throw Error(Error::Kind::diverged, "another reason");
  });
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("another reason"));
  EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("warn: the snapshot of step 0 was not saved: ")));
}

TEST(SnapshotWriter, MetricsSayHowLongASaveHeldUpTraining) {
  const harness::ScratchFolder scratch;
  for (const std::string mode : {"sync", "async"}) {
    train_on(1, saving(mode), scratch / mode);
    for (const base::MetricsRow& row : base::read_metrics(scratch / mode / "metrics.jsonl")) {
      const int64_t step = row.integer("step");
      EXPECT_EQ(row.has("snapshot_s"), step == 3 || step == 5) << mode << ", step " << step;
      if (row.has("snapshot_s")) {
        EXPECT_GT(row.number("snapshot_s"), 0);
      }
    }
  }
}

TEST(SnapshotWriter, CopiesWhatIsOnAGpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const harness::ScratchFolder scratch;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = job_on(world, scratch / "async", "async", "cuda");
    SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
    for (int step = 1; step <= 3; ++step) {
      train_one(*job);
      save_at_once(*job, scratch / "sync", base::real_disk());
      writer.save();
    }
    train_one(*job);
    writer.finish();
    const auto expected = tensor_files(scratch / "sync");
    EXPECT_EQ(expected.size(), 6u);
    EXPECT_TRUE(tensor_files(scratch / "async") == expected);
  });
}

}  // namespace
}  // namespace cairn::train
