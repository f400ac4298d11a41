// Records on disk: named pieces of fixed length that are written and read in the background.
//
//   write   a new version of a record from a buffer that the store owns until it is on disk
//   read    a version: the latest when asked, or one that is still to come, which the read waits for
//
// Per record, a write waits for what was asked before it, and a read for the write of its version, so that no record is ever half visible.
// A read that may share its buffer gets one that is still being written, without the disk (forwarding).
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "memory/buffer_pool.h"
#include "memory/disk/disk_io.h"
#include "memory/disk/seal.h"
#include "memory/swap_file.h"

namespace cairn::memory {

enum class RecordId : int64_t {};

inline constexpr std::chrono::nanoseconds kTransferDeadline = std::chrono::seconds(300);

struct WriteOptions {
  IoClass io_class = IoClass::write_back;
  std::chrono::nanoseconds deadline = kTransferDeadline;  // from now
};

struct ReadOptions {
  IoClass io_class = IoClass::parameters;
  std::chrono::nanoseconds deadline = kTransferDeadline;  // from now
  uint64_t version = 0;                                   // 0: the latest that was handed to write()
  bool exclusive = false;  // the reader changes the bytes: it gets a buffer that nobody else has, after the write of this version
};

struct StoreCounters {
  int64_t forwarded_reads = 0, forwarded_bytes = 0;  // served from a buffer that was still being written
  int64_t disk_reads = 0;                            // served from the disk
  int64_t ready_waits = 0;                           // calls of wait() that found their transfer done
  int64_t stalls = 0;                                // those that did not
  double stall_s = 0;
};

class RecordStore;

// What a transfer has in common with whoever waits for it.
class PendingTransfer;

// A write on its way. Dropping the handle does not cancel it: an error shows at the next use of the record.
class WriteHandle {
 public:
  void wait();         // until it is on disk; throws its error, or one of kind disk at the deadline
  bool ready() const;  // done or failed: wait() returns at once
  bool cancel();       // true: the disk still holds what it held, and this version never was
  uint64_t version() const { return version_; }

 private:
  friend class RecordStore;
  std::shared_ptr<PendingTransfer> transfer_;
  uint64_t version_ = 0;
};

// A read on its way. It must not outlive its store, nor may a WriteHandle, but for ready() and wait().
class ReadHandle {
 public:
  ReadHandle() = default;
  ReadHandle(ReadHandle&&) = default;
  ReadHandle& operator=(ReadHandle&&) = default;

  std::shared_ptr<const Buffer> wait();  // the record; do not change it
  Buffer take();                         // the same for an exclusive read: the buffer is the caller's. Once
  bool ready() const;
  bool cancel();  // true: it does not happen any more
  uint64_t version() const { return version_; }
  bool forwarded() const;  // it did not need the disk

 private:
  friend class RecordStore;
  std::shared_ptr<PendingTransfer> transfer_;
  std::shared_ptr<Buffer> buffer_;  // once it was waited for
  uint64_t version_ = 0;
  bool exclusive_ = false;
};

// The records of one rank. Thread-safe.
class RecordStore {
 public:
  // `disk` may be shared with other stores; `pool` gives the buffers of reads.
  RecordStore(const SwapOptions& options, std::shared_ptr<DiskIo> disk, BufferPool pool, base::Log& log);
  // Cancels what has not begun and waits for the rest.
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  // Reserves room for a record. Throws out_of_memory where memory.disk_budget has none left.
  RecordId add(std::string name, int64_t bytes, base::MemoryUse use);
  // Its room is free once nothing uses it any more. Writes of it that have not begun are cancelled, and so are reads that wait for them.
  void remove(RecordId id);

  // `buffer` has the record's length. Returns at once.
  WriteHandle write(RecordId id, Buffer buffer, const WriteOptions& options = {});
  // Returns at once. Throws out_of_memory where the pool has no buffer for it, and what is wrong with the record if it is known already.
  ReadHandle read(RecordId id, const ReadOptions& options = {});
  ReadHandle read_into(RecordId id, Buffer buffer, const ReadOptions& options = {});

  uint64_t version(RecordId id) const;          // the latest that was handed to write(); 0: none
  uint64_t version_on_disk(RecordId id) const;  // 0: none
  int64_t bytes(RecordId id) const;
  // Waits until all that was asked for is done. Throws the first error of a write that nobody has seen.
  void drain(std::chrono::nanoseconds deadline = kTransferDeadline);

  StoreCounters counters() const;
  SwapFile& file() { return file_; }
  DiskIo& disk() { return *disk_; }

 private:
  friend class WriteHandle;
  friend class ReadHandle;
  friend class PendingTransfer;
  struct Operation;
  struct Record;
  using OperationPtr = std::shared_ptr<Operation>;

  Record& record(RecordId id);
  const Record& record(RecordId id) const;
  ReadHandle start_read(RecordId id, std::optional<Buffer> buffer, const ReadOptions& options);
  OperationPtr make_operation(Record& record, bool write, uint64_t version, IoClass io_class, std::chrono::nanoseconds deadline);
  OperationPtr pending_write(const Record& record, uint64_t version) const;
  bool forward(const Operation& write, Operation& read);
  void advance(Record& record);
  void begin(Record& record, const OperationPtr& operation);
  void end(const OperationPtr& operation, const DiskTransfer::Outcome& outcome);
  void end_write(Record& record, Operation& write, const std::optional<Error>& error, bool touched);
  OperationPtr hand_over(Record& record, Operation& write);
  void withdraw(Record& record, uint64_t version, const Error& why);
  void cancel_all(Record& record, const Error& why);
  bool cancel(PendingTransfer& transfer);
  void complete(Operation& operation, std::optional<Error> error, bool forwarded = false);
  void forget_if_over(RecordId id);
  bool is_idle() const;
  std::string where(const Record& record) const;
  [[noreturn]] void refuse_version(const Record& record, uint64_t version) const;

  const base::Clock& clock_;
  std::shared_ptr<DiskIo> disk_;
  SwapFile file_;
  BufferPool pool_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::map<RecordId, Record> records_;
  int64_t next_id_ = 0;
  std::vector<std::shared_ptr<PendingTransfer>> failed_writes_;
  struct SharedCounters;
  std::shared_ptr<SharedCounters> counters_;
};

}  // namespace cairn::memory
