// The inside of a RecordStore.
#pragma once
#include "memory/record_store.h"

namespace cairn::memory {

struct RecordStore::SharedCounters {
  std::atomic<int64_t> forwarded_reads{0}, forwarded_bytes{0}, disk_reads{0}, ready_waits{0}, stalls{0}, stall_ns{0};
};

class PendingTransfer {
 public:
  void finish(std::optional<Error> error, std::shared_ptr<Buffer> buffer, bool forwarded);
  std::shared_ptr<Buffer> wait();  // the buffer goes to the first caller
  bool done() const;

  // Set when it is made.
  RecordStore* store = nullptr;
  const base::Clock* clock = nullptr;
  std::shared_ptr<RecordStore::SharedCounters> counters;
  std::string what;  // "reading layers.3 (version 2; 4.00 MiB at offset 8192 of FILE)"
  std::chrono::nanoseconds deadline{}, patience{};
  std::weak_ptr<RecordStore::Operation> operation;

  bool forwarded() const;
  bool seen() const;  // its error was thrown to somebody
  std::optional<Error> error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, forwarded_ = false, seen_ = false;
  std::optional<Error> error_;
  std::shared_ptr<Buffer> buffer_;
};

struct RecordStore::Operation {
  RecordId id{};
  bool write = false, exclusive = false;
  bool active = false;  // the disk has it
  uint64_t version = 0;
  IoClass io_class = IoClass::parameters;
  std::chrono::nanoseconds deadline{};
  std::shared_ptr<Buffer> buffer = {};
  std::shared_ptr<PendingTransfer> transfer = {};
  uint64_t transfer_id = 0;  // of the disk
  Seal seal = {};            // write: the one it writes, without the checksum; read: the one it expects
  std::optional<SealWriter> sealer = {};
};

struct RecordStore::Record {
  std::string name;
  int64_t bytes = 0;
  base::MemoryUse use = base::MemoryUse::other;
  Range region = {};
  uint64_t next_version = 1, latest = 0, on_disk = 0;
  Seal seal = {};                             // of the version on disk
  std::vector<OperationPtr> operations = {};  // in order: those that the disk has, then those that wait for them
  std::vector<OperationPtr> future = {};      // reads of versions that nobody has written yet
  std::optional<Error> failure = {};          // a write broke what was on disk
  bool removed = false;
};

}  // namespace cairn::memory
