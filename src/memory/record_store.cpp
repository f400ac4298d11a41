#include "memory/record_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/text.h"
#include "memory/record_state.h"

namespace cairn::memory {

RecordStore::RecordStore(const SwapOptions& options, std::shared_ptr<DiskIo> disk, BufferPool pool, base::Log& log)
    : clock_(disk->clock()),
      disk_(std::move(disk)),
      file_(options, log, disk_->disk()),
      pool_(std::move(pool)),
      counters_(std::make_shared<SharedCounters>()) {}

RecordStore::~RecordStore() {
  std::unique_lock lock(mutex_);
  for (auto& [id, one] : records_) cancel_all(one, Error(Error::Kind::cancelled, "cancelled: the store is closed"));
  while (!is_idle()) idle_.wait_for(lock, std::chrono::seconds(1));  // its buffers belong to the kernel until then
}

RecordStore::Record& RecordStore::record(RecordId id) {
  const auto found = records_.find(id);
  CAIRN_CHECK(found != records_.end() && !found->second.removed, "there is no record {}", static_cast<int64_t>(id));
  return found->second;
}
const RecordStore::Record& RecordStore::record(RecordId id) const { return const_cast<RecordStore*>(this)->record(id); }

std::string RecordStore::where(const Record& one) const {
  return fmt::format("{} at offset {}: {}", file_.path().string(), one.region.offset, one.name);
}

RecordId RecordStore::add(std::string name, int64_t bytes, base::MemoryUse use) {
  CAIRN_CHECK(bytes > 0, "{}: a record of {} bytes", name, bytes);
  const Range region = file_.budget().take(sealed_bytes(bytes), use, name);
  const std::lock_guard lock(mutex_);
  const RecordId id{next_id_++};
  records_.emplace(id, Record{.name = std::move(name), .bytes = bytes, .use = use, .region = region});
  return id;
}

void RecordStore::remove(RecordId id) {
  const std::lock_guard lock(mutex_);
  Record& one = record(id);
  one.removed = true;
  cancel_all(one, Error(Error::Kind::cancelled, fmt::format("cancelled: {} was removed", one.name)));
  forget_if_over(id);
}

RecordStore::OperationPtr RecordStore::make_operation(Record& one, bool write, uint64_t version, IoClass io_class,
                                                      std::chrono::nanoseconds deadline) {
  auto operation = std::make_shared<Operation>();
  operation->write = write;
  operation->version = version;
  operation->io_class = io_class;
  operation->deadline = clock_.now() + deadline;
  auto transfer = std::make_shared<PendingTransfer>();
  transfer->store = this;
  transfer->clock = &clock_;
  transfer->counters = counters_;
  transfer->what = fmt::format("{} {} (version {}; {} at offset {} of {})", write ? "writing" : "reading", one.name, version,
                               base::human_bytes(one.bytes), one.region.offset, file_.path().string());
  transfer->deadline = operation->deadline;
  transfer->patience = deadline;
  transfer->operation = operation;
  operation->transfer = std::move(transfer);
  return operation;
}

WriteHandle RecordStore::write(RecordId id, Buffer buffer, const WriteOptions& options) {
  const std::lock_guard lock(mutex_);
  Record& one = record(id);
  CAIRN_CHECK(buffer.size() == one.bytes, "{}: {} bytes are written, the record has {}", one.name, buffer.size(), one.bytes);
  const uint64_t version = one.next_version++;
  one.latest = version;
  const OperationPtr write = make_operation(one, true, version, options.io_class, options.deadline);
  write->id = id;
  write->buffer = std::make_shared<Buffer>(std::move(buffer));
  write->seal = {.run = file_.run(), .record = base::checksum(one.name), .version = version, .length = static_cast<uint64_t>(one.bytes)};
  one.operations.push_back(write);
  std::vector<OperationPtr> still_to_come;
  for (const OperationPtr& read : std::exchange(one.future, {})) {
    if (read->version != version)
      still_to_come.push_back(read);
    else if (!forward(*write, *read))
      one.operations.push_back(read);
  }
  one.future = std::move(still_to_come);
  advance(one);
  WriteHandle handle;
  handle.transfer_ = write->transfer;
  handle.version_ = version;
  return handle;
}

ReadHandle RecordStore::read(RecordId id, const ReadOptions& options) { return start_read(id, std::nullopt, options); }
ReadHandle RecordStore::read_into(RecordId id, Buffer buffer, const ReadOptions& options) {
  return start_read(id, std::move(buffer), options);
}

ReadHandle RecordStore::start_read(RecordId id, std::optional<Buffer> buffer, const ReadOptions& options) {
  const std::lock_guard lock(mutex_);
  Record& one = record(id);
  CAIRN_CHECK(!buffer || buffer->size() == one.bytes, "{}: read into {} bytes, the record has {}", one.name, buffer->size(), one.bytes);
  const uint64_t version = options.version == 0 ? one.latest : options.version;
  const OperationPtr write = pending_write(one, version);
  const bool to_come = options.version > one.latest;
  if (write == nullptr && !to_come && (one.failure || version == 0 || one.on_disk != version)) refuse_version(one, version);
  const OperationPtr read = make_operation(one, false, version, options.io_class, options.deadline);
  read->id = id;
  read->exclusive = options.exclusive;
  ReadHandle handle;
  handle.transfer_ = read->transfer;
  handle.version_ = version;
  handle.exclusive_ = options.exclusive;
  if (write != nullptr && forward(*write, *read)) return handle;
  read->buffer = std::make_shared<Buffer>(buffer ? std::move(*buffer) : pool_.take(one.bytes, one.use, one.name));
  if (to_come) {
    one.future.push_back(read);
    return handle;
  }
  if (write != nullptr) {  // what this read waits for is as urgent as the read
    write->io_class = std::min(write->io_class, read->io_class);
    if (write->active) disk_->promote(write->transfer_id, write->io_class);
  }
  one.operations.push_back(read);
  advance(one);
  return handle;
}

void RecordStore::refuse_version(const Record& one, uint64_t version) const {
  if (one.failure) throw Error(*one.failure);
  if (one.latest == 0) throw Error(Error::Kind::corrupt_file, fmt::format("{} was never written", where(one)));
  throw Error(Error::Kind::corrupt_file,
              fmt::format("{}: version {} was asked for, and version {} has replaced it", where(one), version, one.latest));
}

uint64_t RecordStore::version(RecordId id) const {
  const std::lock_guard lock(mutex_);
  return record(id).latest;
}

uint64_t RecordStore::version_on_disk(RecordId id) const {
  const std::lock_guard lock(mutex_);
  return record(id).on_disk;
}

int64_t RecordStore::bytes(RecordId id) const {
  const std::lock_guard lock(mutex_);
  return record(id).bytes;
}

bool RecordStore::is_idle() const {
  return std::all_of(records_.begin(), records_.end(), [](const auto& entry) { return entry.second.operations.empty(); });
}

void RecordStore::drain(std::chrono::nanoseconds deadline) {
  std::vector<std::shared_ptr<PendingTransfer>> failed;
  {
    std::unique_lock lock(mutex_);
    const std::chrono::nanoseconds until = clock_.now() + deadline;
    while (!is_idle()) {
      const std::chrono::nanoseconds left = until - clock_.now();
      if (left.count() <= 0)
        throw Error(Error::Kind::disk,
                    fmt::format("{}: its transfers are not done within {}", file_.path().string(), base::human_duration(deadline)));
      idle_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(1)));
    }
    failed = std::exchange(failed_writes_, {});
  }
  for (const auto& one : failed)
    if (!one->seen()) throw Error(*one->error());
}

StoreCounters RecordStore::counters() const {
  return {.forwarded_reads = counters_->forwarded_reads,
          .forwarded_bytes = counters_->forwarded_bytes,
          .disk_reads = counters_->disk_reads,
          .ready_waits = counters_->ready_waits,
          .stalls = counters_->stalls,
          .stall_s = 1e-9 * static_cast<double>(counters_->stall_ns)};
}

}  // namespace cairn::memory
