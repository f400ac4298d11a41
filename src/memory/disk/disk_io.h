#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/disk.h"
#include "memory/disk/arbiter.h"
#include "memory/disk/back_end.h"
#include "memory/disk/disk_model.h"
#include "memory/disk/io_faults.h"

namespace cairn::memory {

struct DiskIoOptions {
  enum class BackEnd : uint8_t { automatic, io_uring, threads };  // automatic: io_uring where the kernel has it

  BackEnd back_end = BackEnd::automatic;
  int depth = 8;  // blocks on their way at once
  int64_t block_bytes = int64_t{1} << 20;
  std::chrono::nanoseconds aging = std::chrono::milliseconds(250);  // see DiskArbiter
  DiskModel model = {};
  uint64_t seed = 0;  // of the model's jitter
  IoFaults faults = {};
};

// One read or write of a file, of any length. What belongs to it must stay until `done` was called.
struct DiskTransfer {
  int file = -1;
  std::string path;  // for errors
  bool write = false;
  std::span<std::byte> bytes;  // whole pages, at the start of a page
  int64_t offset = 0;
  IoClass io_class = IoClass::parameters;
  std::chrono::nanoseconds deadline{};  // on the clock of the disk

  struct Outcome {
    std::optional<Error> error;
    bool touched = false;  // some of it may have been transferred
  };
  std::function<void(int64_t begin, int64_t end)> prepare;  // before each block of it, in order; may be empty
  std::function<void(const Outcome&)> done;                 // once
};

// What a disk did, booked where blocks are done.
struct DiskCounters {
  struct Row {
    int64_t transfers = 0, bytes = 0;
    bool operator==(const Row&) const = default;
  };
  std::array<Row, kIoClasses> read, written;  // by IoClass
  int64_t errors = 0, cancelled = 0;
  int64_t waiting = 0, waiting_peak = 0;  // transfers of which blocks are still to be handed out
  int64_t depth = 0, depth_peak = 0;      // blocks on their way
  double busy_s = 0;                      // while there was at least one
  double depth_s = 0;                     // the integral of depth over time: mean depth = depth_s / busy_s

  int64_t bytes_read() const;
  int64_t bytes_written() const;
};

// All transfers of one disk: the arbiter decides whose block is next, the back end moves it, the model says when it may count as done.
// Ranks that share a disk within one process share this object. Thread-safe; `prepare` and `done` run on its own thread and hold no lock.
class DiskIo {
 public:
  // `memory` is registered with the kernel where it can be, and must stay. A disk other than the real one is written by threads, since a
  // ring would bypass it.
  DiskIo(const DiskIoOptions& options, const base::Clock& clock, const std::vector<std::span<std::byte>>& memory = {},
         const base::Disk& disk = base::real_disk());
  // Waits for what has begun and cancels the rest.
  ~DiskIo();
  DiskIo(const DiskIo&) = delete;
  DiskIo& operator=(const DiskIo&) = delete;

  uint64_t submit(DiskTransfer transfer);
  // True: nothing of it was or will be done; its `done` gets an error of kind cancelled.
  bool cancel(uint64_t id);
  void promote(uint64_t id, IoClass io_class);  // where something urgent waits for it

  DiskCounters counters() const;
  // "io_uring with registered buffers", "8 threads with pread and pwrite (io_uring: the kernel refuses it: ...)".
  const std::string& description() const { return description_; }
  const base::Clock& clock() const { return clock_; }
  const base::Disk& disk() const { return disk_; }

 private:
  struct Active {
    DiskTransfer transfer;
    int blocks = 0;  // on their way
    bool begun = false;
    std::optional<Error> error = {};
    int64_t error_at = 0;  // of several the first in the file is reported
  };
  struct OnItsWay {
    uint64_t id = 0;
    BlockTransfer block = {};
    std::chrono::nanoseconds not_before{};  // by the model
  };
  struct Finished {
    std::function<void(const DiskTransfer::Outcome&)> done;
    DiskTransfer::Outcome outcome;
  };
  struct Work {
    struct Prepare {
      std::function<void(int64_t, int64_t)> call;
      int64_t begin = 0, end = 0;
    };
    std::vector<Prepare> prepares;
    std::vector<BlockTransfer> blocks;
    std::vector<Finished> finished;
  };

  void run();
  void collect(Work& work, std::chrono::nanoseconds now);
  void expire(Work& work, std::chrono::nanoseconds now);
  void issue(Work& work, std::chrono::nanoseconds now);
  void take_result(const BlockResult& result, Work& work, std::chrono::nanoseconds now);
  void block_done(const OnItsWay& way, Work& work);
  void finish(uint64_t id, Work& work);
  void book_depth(std::chrono::nanoseconds now);
  std::chrono::nanoseconds time_to_wait(std::chrono::nanoseconds now) const;
  Error error_of(const DiskTransfer& transfer, int64_t result, int64_t offset, int64_t missing) const;

  const DiskIoOptions options_;
  const base::Clock& clock_;
  const base::Disk& disk_;
  std::unique_ptr<IoBackEnd> back_end_;
  std::string description_;

  mutable std::mutex mutex_;
  DiskArbiter arbiter_;
  DiskShaper shaper_;
  std::map<uint64_t, Active> active_;
  std::map<uint64_t, OnItsWay> on_their_way_;               // by tag
  std::multimap<std::chrono::nanoseconds, OnItsWay> held_;  // done, but not yet by the model
  std::vector<uint64_t> cancelled_;
  uint64_t next_id_ = 1, next_tag_ = 1;
  bool stopping_ = false;
  DiskCounters counters_;
  std::chrono::nanoseconds depth_since_{};
  std::thread thread_;
};

// Which back end this machine gets, for `cairn doctor`.
std::string describe_disk_io();

}  // namespace cairn::memory
