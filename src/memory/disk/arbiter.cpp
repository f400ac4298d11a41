#include "memory/disk/arbiter.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace cairn::memory {

DiskArbiter::DiskArbiter(std::chrono::nanoseconds aging, int64_t block_bytes) : aging_(aging), block_bytes_(block_bytes) {
  CAIRN_CHECK(aging.count() > 0 && block_bytes > 0, "aging of {} ns, blocks of {} bytes", aging.count(), block_bytes);
}

void DiskArbiter::push(const QueuedTransfer& transfer) {
  CAIRN_CHECK(transfer.bytes > 0, "a transfer of {} bytes", transfer.bytes);
  waiting_[transfer.id] = {transfer};
}

// A short rest joins the last block: a disk pays for blocks, not only for bytes.
int64_t DiskArbiter::length_of_next(const Entry& entry) const {
  const int64_t left = entry.transfer.bytes - entry.handed_out;
  return left <= block_bytes_ + block_bytes_ / 4 ? left : block_bytes_;
}

std::optional<Block> DiskArbiter::next(std::chrono::nanoseconds now, bool reads, bool writes) {
  Entry* best = nullptr;
  std::tuple<int64_t, std::chrono::nanoseconds, uint64_t> best_rank;
  for (auto& [id, entry] : waiting_) {
    if (!(entry.transfer.write ? writes : reads)) continue;
    const int64_t older = std::max<int64_t>(0, (now - entry.transfer.queued) / aging_);
    const std::tuple rank{std::max<int64_t>(0, static_cast<int64_t>(entry.transfer.io_class) - older), entry.transfer.deadline, id};
    if (best != nullptr && best_rank <= rank) continue;
    best = &entry;
    best_rank = rank;
  }
  if (best == nullptr) return std::nullopt;
  const Block block{best->transfer.id, best->transfer.write, best->handed_out, length_of_next(*best)};
  best->handed_out += block.bytes;
  if (best->handed_out == best->transfer.bytes) waiting_.erase(block.id);
  return block;
}

bool DiskArbiter::withdraw(uint64_t id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end() || found->second.handed_out > 0) return false;
  waiting_.erase(found);
  return true;
}

void DiskArbiter::promote(uint64_t id, IoClass io_class) {
  const auto found = waiting_.find(id);
  if (found != waiting_.end()) found->second.transfer.io_class = std::min(found->second.transfer.io_class, io_class);
}

std::vector<uint64_t> DiskArbiter::expire(std::chrono::nanoseconds now) {
  std::vector<uint64_t> late;
  for (const auto& [id, entry] : waiting_)
    if (entry.handed_out == 0 && entry.transfer.deadline <= now) late.push_back(id);
  for (const uint64_t id : late) waiting_.erase(id);
  return late;
}

std::optional<std::chrono::nanoseconds> DiskArbiter::next_deadline() const {
  std::optional<std::chrono::nanoseconds> earliest;
  for (const auto& [id, entry] : waiting_)
    if (entry.handed_out == 0 && (!earliest || entry.transfer.deadline < *earliest)) earliest = entry.transfer.deadline;
  return earliest;
}

}  // namespace cairn::memory
