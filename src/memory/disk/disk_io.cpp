// The one thread of a disk. Its loop: hand blocks to the back end as the arbiter and the model allow, wait for results or for time, book
// them, and call back whoever waits. `depth_` blocks at most are on their way, so that an urgent transfer is never behind more than these.
#include "memory/disk/disk_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "memory/budget.h"

namespace cairn::memory {
namespace {

constexpr std::chrono::nanoseconds kLongestWait = std::chrono::seconds(1);

void check_options(const DiskIoOptions& options) {
  if (options.depth < 1 || options.depth > 1024) base::fail_input("disk.depth = {}: must be from 1 to 1024", options.depth);
  if (options.block_bytes < kPageBytes || options.block_bytes % kPageBytes != 0)
    base::fail_input("disk.block_bytes = {}: must be a multiple of {}", options.block_bytes, kPageBytes);
}

}  // namespace

int64_t DiskCounters::bytes_read() const {
  int64_t sum = 0;
  for (const Row& row : read) sum += row.bytes;
  return sum;
}

int64_t DiskCounters::bytes_written() const {
  int64_t sum = 0;
  for (const Row& row : written) sum += row.bytes;
  return sum;
}

DiskIo::DiskIo(const DiskIoOptions& options, const base::Clock& clock, const std::vector<std::span<std::byte>>& memory,
               const base::Disk& disk)
    : options_(options), clock_(clock), disk_(disk), arbiter_(options.aging, options.block_bytes), shaper_(options.model, options.seed) {
  check_options(options);
  std::string why_not = "not asked for";
  const bool real = &disk == &base::real_disk();
  if (options.back_end != DiskIoOptions::BackEnd::threads && real) back_end_ = make_uring(options.depth, memory, why_not);
  if (!real) why_not = "this disk is not the machine's own";
  if (back_end_ == nullptr && options.back_end == DiskIoOptions::BackEnd::io_uring)
    base::fail_input("disk.back_end = io_uring: {}. Use automatic, which takes threads then.", why_not);
  if (back_end_ == nullptr) {
    back_end_ = make_io_threads(options.depth, disk);
    description_ = fmt::format("{} (io_uring: {})", back_end_->description(), why_not);
  } else {
    description_ = back_end_->description();
  }
  if (options.faults.any()) back_end_ = make_faulty(std::move(back_end_), options.faults);
  depth_since_ = clock_.now();
  thread_ = std::thread([this] { run(); });
}

DiskIo::~DiskIo() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  back_end_->wake();
  thread_.join();
}

uint64_t DiskIo::submit(DiskTransfer transfer) {
  const auto bytes = static_cast<int64_t>(transfer.bytes.size());
  CAIRN_CHECK(bytes > 0 && bytes % kPageBytes == 0 && transfer.offset % kPageBytes == 0 &&
                  reinterpret_cast<uintptr_t>(transfer.bytes.data()) % kPageBytes == 0,
              "direct I/O of {} bytes at {}: whole pages only", bytes, transfer.offset);
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    arbiter_.push({id, transfer.io_class, transfer.write, bytes, clock_.now(), transfer.deadline});
    counters_.waiting_peak = std::max(counters_.waiting_peak, static_cast<int64_t>(arbiter_.size()));
    active_.emplace(id, Active{.transfer = std::move(transfer)});
  }
  back_end_->wake();
  return id;
}

bool DiskIo::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    if (!arbiter_.withdraw(id)) return false;
    const DiskTransfer& transfer = active_.at(id).transfer;
    active_.at(id).error =
        Error(Error::Kind::cancelled,
              fmt::format("cancelled: {} {} at offset {}", transfer.write ? "writing" : "reading", transfer.path, transfer.offset));
    cancelled_.push_back(id);
    ++counters_.cancelled;
  }
  back_end_->wake();
  return true;
}

void DiskIo::promote(uint64_t id, IoClass io_class) {
  const std::lock_guard lock(mutex_);
  arbiter_.promote(id, io_class);
}

DiskCounters DiskIo::counters() const {
  const std::lock_guard lock(mutex_);
  DiskCounters now = counters_;
  now.waiting = static_cast<int64_t>(arbiter_.size());
  return now;
}

void DiskIo::run() {
  std::vector<BlockResult> results;
  for (;;) {
    Work work;
    std::chrono::nanoseconds at_most{};
    bool over = false;
    {
      const std::lock_guard lock(mutex_);
      const std::chrono::nanoseconds now = clock_.now();
      for (const BlockResult& result : results) take_result(result, work, now);
      collect(work, now);
      at_most = time_to_wait(now);
      over = stopping_ && active_.empty();
    }
    results.clear();
    for (const Work::Prepare& one : work.prepares) one.call(one.begin, one.end);
    if (!work.blocks.empty()) back_end_->submit(work.blocks);
    for (const Finished& one : work.finished) one.done(one.outcome);
    work.prepares.clear();  // they hold what belongs to others
    if (over) return;
    back_end_->wait(results, work.finished.empty() ? at_most : std::chrono::nanoseconds(0));
  }
}

// Everything that can be done now.
void DiskIo::collect(Work& work, std::chrono::nanoseconds now) {
  while (!held_.empty() && held_.begin()->first <= now) {
    const OnItsWay way = held_.begin()->second;
    held_.erase(held_.begin());
    block_done(way, work);
  }
  if (stopping_) {
    for (const auto& [id, active] : active_)
      if (arbiter_.withdraw(id)) cancelled_.push_back(id);
  }
  for (const uint64_t id : cancelled_) {
    if (!active_.at(id).error) active_.at(id).error = Error(Error::Kind::cancelled, "cancelled: the disk is closed");
    finish(id, work);
  }
  cancelled_.clear();
  expire(work, now);
  issue(work, now);
  book_depth(now);
}

void DiskIo::expire(Work& work, std::chrono::nanoseconds now) {
  for (const uint64_t id : arbiter_.expire(now)) {
    Active& active = active_.at(id);
    active.error =
        Error(Error::Kind::disk,
              fmt::format("{} {} at offset {}: did not begin before its deadline, behind {}", active.transfer.write ? "writing" : "reading",
                          active.transfer.path, active.transfer.offset, base::plural(static_cast<int64_t>(arbiter_.size()), "transfer")));
    ++counters_.errors;
    finish(id, work);
  }
}

void DiskIo::issue(Work& work, std::chrono::nanoseconds now) {
  const bool shaped = options_.model.limits();
  while (static_cast<int>(on_their_way_.size() + held_.size()) < options_.depth) {
    const bool reads = !shaped || shaper_.idle_from(false) <= now, writes = !shaped || shaper_.idle_from(true) <= now;
    const std::optional<Block> next = arbiter_.next(now, reads, writes);
    if (!next) return;
    Active& active = active_.at(next->id);
    if (active.transfer.prepare) work.prepares.push_back({active.transfer.prepare, next->offset, next->offset + next->bytes});
    active.begun = true;
    ++active.blocks;
    book_depth(now);
    const BlockTransfer block{next_tag_++, active.transfer.file,
                              next->write, active.transfer.bytes.data() + next->offset,
                              next->bytes, active.transfer.offset + next->offset};
    on_their_way_[block.tag] = {next->id, block, shaped ? shaper_.begin(next->write, next->bytes, now) : std::chrono::nanoseconds(0)};
    work.blocks.push_back(block);
  }
}

void DiskIo::take_result(const BlockResult& result, Work& work, std::chrono::nanoseconds now) {
  const auto found = on_their_way_.find(result.tag);
  CAIRN_CHECK(found != on_their_way_.end(), "a result of no block");
  OnItsWay way = found->second;
  BlockTransfer& block = found->second.block;
  const bool again = result.result == -EINTR || result.result == -EAGAIN;
  const bool in_part = result.result > 0 && result.result < block.bytes && result.result % kPageBytes == 0;
  Active& active = active_.at(way.id);
  auto& row = (way.block.write ? counters_.written : counters_.read)[static_cast<size_t>(active.transfer.io_class)];
  row.bytes += std::max<int64_t>(0, result.result);
  if (again || in_part) {
    const int64_t n = again ? 0 : result.result;
    block.data += n, block.bytes -= n, block.offset += n;
    work.blocks.push_back(block);
    return;
  }
  if (result.result != block.bytes && (!active.error || block.offset < active.error_at)) {
    counters_.errors += active.error ? 0 : 1;
    active.error = error_of(active.transfer, result.result, block.offset, block.bytes);
    active.error_at = block.offset;
    arbiter_.drop(way.id);
  }
  on_their_way_.erase(found);
  if (way.not_before > now)
    held_.emplace(way.not_before, way);
  else
    block_done(way, work);
}

void DiskIo::block_done(const OnItsWay& way, Work& work) {
  Active& active = active_.at(way.id);
  --active.blocks;
  if (active.blocks > 0 || arbiter_.has(way.id)) return;
  auto& row = (active.transfer.write ? counters_.written : counters_.read)[static_cast<size_t>(active.transfer.io_class)];
  if (!active.error) ++row.transfers;
  finish(way.id, work);
}

void DiskIo::finish(uint64_t id, Work& work) {
  const auto found = active_.find(id);
  work.finished.push_back({std::move(found->second.transfer.done), {std::move(found->second.error), found->second.begun}});
  active_.erase(found);
}

void DiskIo::book_depth(std::chrono::nanoseconds now) {
  const double passed = base::seconds(now - depth_since_);
  if (counters_.depth > 0) counters_.busy_s += passed;
  counters_.depth_s += passed * static_cast<double>(counters_.depth);
  depth_since_ = now;
  counters_.depth = static_cast<int64_t>(on_their_way_.size() + held_.size());
  counters_.depth_peak = std::max(counters_.depth_peak, counters_.depth);
}

std::chrono::nanoseconds DiskIo::time_to_wait(std::chrono::nanoseconds now) const {
  std::chrono::nanoseconds until = now + kLongestWait;
  if (!held_.empty()) until = std::min(until, held_.begin()->first);
  if (arbiter_.size() > 0) {
    if (const auto deadline = arbiter_.next_deadline()) until = std::min(until, *deadline);
    for (const bool write : {false, true})
      if (options_.model.limits() && shaper_.idle_from(write) > now) until = std::min(until, shaper_.idle_from(write));
  }
  return std::max(until - now, std::chrono::nanoseconds(0));
}

Error DiskIo::error_of(const DiskTransfer& transfer, int64_t result, int64_t offset, int64_t missing) const {
  const char* doing = transfer.write ? "writing" : "reading";
  if (result == -ENOSPC || result == -EDQUOT) {
    const int64_t free = disk_.free_bytes(std::filesystem::path(transfer.path).parent_path());
    return {Error::Kind::disk,
            fmt::format("disk full writing {} at offset {}: {} needed, {} free; free space or choose another folder", transfer.path, offset,
                        base::human_bytes(missing), free < 0 ? "unknown space" : base::human_bytes(free))};
  }
  if (result < 0)
    return {Error::Kind::disk,
            fmt::format("{} {} at offset {}: {}", doing, transfer.path, offset, std::strerror(static_cast<int>(-result)))};
  return {Error::Kind::disk, fmt::format("{} {} at offset {}: {} of {} bytes, and no more", doing, transfer.path, offset, result, missing)};
}

std::string describe_disk_io() {
  std::string why_not;
  if (const auto ring = make_uring(1, {}, why_not)) return ring->description();
  return fmt::format("threads (io_uring: {})", why_not);
}

}  // namespace cairn::memory
