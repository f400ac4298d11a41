#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "memory/disk/io_class.h"

namespace cairn::memory {

// A transfer that waits for the disk.
struct QueuedTransfer {
  uint64_t id = 0;  // in the order of arrival
  IoClass io_class = IoClass::parameters;
  bool write = false;
  int64_t bytes = 0;
  std::chrono::nanoseconds queued{}, deadline{};
};

// The part of a transfer that goes to the disk next.
struct Block {
  uint64_t id = 0;
  bool write = false;
  int64_t offset = 0, bytes = 0;  // within the transfer
};

// Who uses the disk next. Transfers are split into blocks, so that an urgent one waits for blocks, not for whole transfers. The most urgent
// class goes first, within a class the earliest deadline. A transfer that has waited for `aging` counts as one class more urgent, after
// twice as long as two, so that nobody starves: after (kIoClasses - 1) * aging only older transfers or earlier deadlines are before it.
// It keeps no time of its own and is not thread-safe.
class DiskArbiter {
 public:
  DiskArbiter(std::chrono::nanoseconds aging, int64_t block_bytes);

  void push(const QueuedTransfer& transfer);
  // The next block among transfers of the directions that are allowed.
  std::optional<Block> next(std::chrono::nanoseconds now, bool reads = true, bool writes = true);
  // Takes a transfer back of which no block was handed out; false: too late, or unknown.
  bool withdraw(uint64_t id);
  // Hands out no more blocks of it.
  void drop(uint64_t id) { waiting_.erase(id); }
  void promote(uint64_t id, IoClass io_class);  // to a more urgent class
  // Transfers past their deadline of which no block was handed out. They are taken back.
  std::vector<uint64_t> expire(std::chrono::nanoseconds now);

  bool has(uint64_t id) const { return waiting_.contains(id); }
  size_t size() const { return waiting_.size(); }
  std::optional<std::chrono::nanoseconds> next_deadline() const;  // of transfers that have not begun

 private:
  struct Entry {
    QueuedTransfer transfer;
    int64_t handed_out = 0;
  };
  int64_t length_of_next(const Entry& entry) const;

  const std::chrono::nanoseconds aging_;
  const int64_t block_bytes_;
  std::map<uint64_t, Entry> waiting_;
};

}  // namespace cairn::memory
