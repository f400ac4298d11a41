// Copies the pieces of a snapshot while training goes on, and hands them to the sinks that keep them (snapshot.mode = "lazy").
//
// After the update of step t nothing changes what a snapshot of step t holds until the update of step t+1: forward and backward only read
// weights, and do not touch the optimizer's state. The copies hide there.
//
//   begin        after the update: says what has to be copied; copies nothing
//   copier       a thread: block after block into a ring of host memory that is allocated once; on a GPU by a stream of its own
//   writer       a thread: out of the ring to the sinks, while later blocks still arrive
//   before_write the next update is about to change this tensor: waits for its blocks, and for no others; never for a sink
//
//   queued --copier--> copying ----> copied --writer--> written
//
// A ring that is full holds up the copier, and so the update of pieces that are still queued: training then waits for the disk. Whoever
// waits for a queued block copies it himself, if the ring has room.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "base/memory_tags.h"
#include "memory/byte_ring.h"
#include "snapshot/sink.h"

namespace cairn::base {
class Clock;
class Trace;
}  // namespace cairn::base

namespace cairn::train {

// One version on this rank.
struct LazyVersion {
  int64_t step = 0;
  std::vector<snapshot::WriteBlock> blocks = {};  // what the sinks get
  std::vector<std::unique_ptr<snapshot::SnapshotSink>> sinks = {};
  // Copied like blocks, but to a place of their own instead of the ring: from, to. They are complete when a sink is asked to end.
  std::vector<std::pair<at::Tensor, at::Tensor>> aside = {};
  // The order in which the update will touch a tensor, from 0; negative: unknown. Blocks are copied in this order. Empty: as they come.
  std::function<int64_t(const at::Tensor&)> touched = {};
};

// What a version has cost, in seconds since begin().
struct LazyReport {
  int64_t step = 0, bytes = 0;
  double copying_s = 0;         // that copies took: bytes over this is their rate
  double copied_s = 0;          // all blocks were in host memory
  double written_s = 0;         // all sinks had all blocks
  double ended_s = 0;           // all sinks had ended: for files, after the votes and the commit
  int64_t ring_peak = 0;        // bytes of the ring in use at most
  std::string why_failed = {};  // of a sink; empty: none did
  double waited_s = 0;          // that training has waited for copies
  std::exception_ptr failure = {};
};

class LazyCopier {
 public:
  struct Parts {
    at::Device device = at::kCPU;
    int64_t ring_bytes = 0;
    base::MemoryTags& memory;
    const base::Clock& clock;
    base::Trace* trace = nullptr;
    // For tests: called by whoever copies, before each block, without locks.
    std::function<void(size_t block)> before_copy = {};
  };
  explicit LazyCopier(Parts parts);
  ~LazyCopier();  // after the version that is under way
  LazyCopier(const LazyCopier&) = delete;
  LazyCopier& operator=(const LazyCopier&) = delete;

  // Starts a version; the one before it must be done(). Blocks must fit into the ring: largest_block.
  void begin(LazyVersion version);
  bool done() const;
  // Waits until the version is done, at most this long; whether it is.
  bool wait_done(std::chrono::nanoseconds at_most) const;
  // What the last version has cost, once it is done; once for each.
  std::optional<LazyReport> take_report();

  // See mesh::WriteBarrier. The seconds that the host has waited since the last call are in take_waited_s.
  void before_write(const at::Tensor& tensor);
  void before_writing_all();
  bool would_wait(const at::Tensor& tensor) const;
  bool copying() const { return unsafe_ > 0; }  // some block is not in host memory yet
  double take_waited_s();

  int64_t ring_bytes() const { return ring_.capacity(); }

 private:
  enum class State { queued, copying, copied, on_host, dropped };
  struct Block {
    at::Tensor from = {};
    at::Tensor to = {};  // beside the ring; undefined: `room`
    std::byte* room = nullptr;
    int64_t bytes = 0, remainder = -1;
    size_t index = 0;  // of the version's blocks
    State state = State::queued;
    std::optional<c10::Event> event = {};  // on an accelerator: the copy is complete
  };
  struct Extent {
    uintptr_t begin, end, reach;  // reach: the largest end so far
    size_t block;
  };
  using Lock = std::unique_lock<std::mutex>;

  void lay_out(LazyVersion& version);
  void copy_all();
  void write_all();
  bool try_copy(Block& block, Lock& lock);
  void copy(Block& block);
  void wait_for(Block& block, Lock& lock);
  void leave_host_copy(Block& block);
  void add_wait(std::chrono::nanoseconds waited);
  void write_version(Lock& lock);
  void drain(Lock& lock);
  void write(const Block& block);
  void fail_sink(size_t sink, std::exception_ptr why);
  void drop_queued();
  bool all_failed() const;
  std::vector<size_t> blocks_of(const at::Tensor& tensor) const;
  double since_begin() const;

  Parts parts_;
  at::Tensor memory_;
  memory::ByteRing ring_;
  base::BookedMemory booked_;
  std::optional<c10::Stream> beside_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool ends_ = false, busy_ = false, given_up_ = false;
  LazyVersion version_;
  std::vector<Block> blocks_;  // in the order in which they are copied
  std::vector<Extent> extents_;
  std::vector<size_t> filled_;  // of blocks_, in the order of their regions in the ring
  size_t next_filled_ = 0, next_queued_ = 0;
  int64_t left_to_copy_ = 0;
  std::atomic<int64_t> unsafe_{0};  // blocks that are not on the host yet
  std::vector<bool> failed_;        // by sink
  std::chrono::nanoseconds begun_{0}, waited_{0};
  LazyReport report_;
  bool has_report_ = false;
  std::thread copier_, writer_;  // last: they use all of the above
};

// The size of the ring for snapshot.host_bytes ("auto" or "512MiB"), for a rank that saves `state` bytes, in blocks of at most `largest`.
// Refuses a ring that does not take two blocks, or more than 80 % of the machine's memory. `local_ranks` share this machine.
int64_t ring_bytes_of(const std::string& setting, int64_t state, int64_t largest, int local_ranks);

}  // namespace cairn::train
