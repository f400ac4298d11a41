// The order of what happens to a record. Its operations stand in a line: reads that follow each other go to the disk together, a write goes
// alone. All but end() is called with the store locked.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "memory/record_state.h"

namespace cairn::memory {

RecordStore::OperationPtr RecordStore::pending_write(const Record& one, uint64_t version) const {
  for (const OperationPtr& operation : one.operations)
    if (operation->write && operation->version == version) return operation;
  return nullptr;
}

// Gives a read the buffer that is being written, unless it wants one for itself.
bool RecordStore::forward(const Operation& write, Operation& read) {
  if (read.exclusive) return false;
  read.buffer = write.buffer;
  complete(read, std::nullopt, true);
  return true;
}

void RecordStore::advance(Record& one) {
  for (size_t i = 0; i < one.operations.size(); ++i) {
    const OperationPtr operation = one.operations[i];
    if (!operation->active) {
      if (operation->write && i > 0) return;
      begin(one, operation);
    }
    if (operation->write) return;
  }
}

void RecordStore::begin(Record& one, const OperationPtr& operation) {
  operation->active = true;
  if (!operation->write) operation->seal = one.seal;
  DiskTransfer transfer{.file = file_.descriptor(),
                        .path = file_.path().string(),
                        .write = operation->write,
                        .bytes = operation->buffer->whole(),
                        .offset = one.region.offset,
                        .io_class = operation->io_class,
                        .deadline = operation->deadline,
                        .prepare = {},
                        .done = [this, operation](const DiskTransfer::Outcome& outcome) { end(operation, outcome); }};
  if (operation->write) {
    operation->sealer.emplace(operation->buffer->whole(), operation->seal);
    transfer.prepare = [operation](int64_t, int64_t end) { operation->sealer->advance(end); };
  }
  operation->transfer_id = disk_->submit(std::move(transfer));
}

// On the thread of the disk.
void RecordStore::end(const OperationPtr& operation, const DiskTransfer::Outcome& outcome) {
  std::string fault;
  if (!operation->write && !outcome.error) fault = find_fault(operation->buffer->whole(), operation->seal);
  const std::lock_guard lock(mutex_);
  Record& one = records_.at(operation->id);
  std::erase(one.operations, operation);
  std::optional<Error> error = outcome.error;
  if (error) error->with(fmt::format("{}, version {}", one.name, operation->version));
  if (!fault.empty()) error = Error(Error::Kind::corrupt_file, fmt::format("{} {}", where(one), fault));
  if (operation->write) {
    end_write(one, *operation, error, outcome.touched);
  } else {
    if (!error) ++counters_->disk_reads;
    complete(*operation, error);
  }
  advance(one);
  forget_if_over(operation->id);
  idle_.notify_all();
}

void RecordStore::end_write(Record& one, Operation& write, const std::optional<Error>& error, bool touched) {
  if (!error) {
    one.on_disk = write.version;
    one.seal = write.sealer->seal();
    one.failure.reset();
    const OperationPtr heir = hand_over(one, write);
    complete(write, std::nullopt);
    if (heir != nullptr) complete(*heir, std::nullopt, true);
    return;
  }
  if (touched) {
    one.failure = error;
    one.on_disk = 0;
  }
  if (error->kind() != Error::Kind::cancelled) failed_writes_.push_back(write.transfer);
  complete(write, error);
  withdraw(one, write.version, *error);
}

// A read that waited for this write in order to have the bytes for itself gets the buffer, if nobody else has it. Returns that read.
RecordStore::OperationPtr RecordStore::hand_over(Record& one, Operation& write) {
  if (one.operations.empty() || write.buffer.use_count() != 1) return nullptr;
  const OperationPtr read = one.operations.front();
  if (read->write || !read->exclusive || read->version != write.version) return nullptr;
  one.operations.erase(one.operations.begin());
  read->buffer = std::move(write.buffer);
  return read;
}

// A version that will never be on disk: reads that wait for it fail, and the one before it is the latest again.
void RecordStore::withdraw(Record& one, uint64_t version, const Error& why) {
  for (std::vector<OperationPtr>* line : {&one.operations, &one.future}) {
    for (const OperationPtr& operation : std::vector<OperationPtr>(*line)) {
      if (operation->write || operation->active || operation->version != version) continue;
      std::erase(*line, operation);
      complete(*operation, why);
    }
  }
  if (one.latest != version) return;
  one.latest = one.on_disk;
  for (const OperationPtr& operation : one.operations)
    if (operation->write) one.latest = std::max(one.latest, operation->version);
}

void RecordStore::cancel_all(Record& one, const Error& why) {
  for (const OperationPtr& operation : std::exchange(one.future, {})) complete(*operation, why);
  for (const OperationPtr& operation : std::vector<OperationPtr>(one.operations)) {
    if (operation->active) {
      disk_->cancel(operation->transfer_id);
      continue;
    }
    std::erase(one.operations, operation);
    complete(*operation, why);
  }
}

bool RecordStore::cancel(PendingTransfer& transfer) {
  const std::lock_guard lock(mutex_);
  const OperationPtr operation = transfer.operation.lock();
  if (operation == nullptr || transfer.done()) return false;
  Record& one = records_.at(operation->id);
  if (operation->active) return disk_->cancel(operation->transfer_id);
  const Error why(Error::Kind::cancelled, fmt::format("cancelled: {}", transfer.what));
  std::erase(one.operations, operation);
  std::erase(one.future, operation);
  complete(*operation, why);
  if (operation->write) withdraw(one, operation->version, why);
  advance(one);
  forget_if_over(operation->id);
  idle_.notify_all();
  return true;
}

void RecordStore::complete(Operation& operation, std::optional<Error> error, bool forwarded) {
  std::shared_ptr<Buffer> buffer = std::exchange(operation.buffer, {});
  if (forwarded) {
    ++counters_->forwarded_reads;
    counters_->forwarded_bytes += buffer->size();
  }
  if (operation.write || error) buffer.reset();  // whoever waits finds it in the pool again
  operation.transfer->finish(std::move(error), std::move(buffer), forwarded);
}

void RecordStore::forget_if_over(RecordId id) {
  const auto found = records_.find(id);
  if (found == records_.end() || !found->second.removed || !found->second.operations.empty()) return;
  file_.budget().give_back(found->second.region);
  records_.erase(found);
}

}  // namespace cairn::memory
