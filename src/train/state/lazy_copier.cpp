#include "train/state/lazy_copier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include "base/byte_count.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/trace.h"
#include "kernels/aten.h"
#include "kernels/streams.h"
#include "snapshot/options.h"

namespace cairn::train {
namespace {

constexpr int kNice = 10;                                    // of both threads: training comes first
constexpr auto kWaitLimit = std::chrono::minutes(10);        // for a sink that takes nothing; then the version is given up
constexpr auto kCheckEvery = std::chrono::milliseconds(50);  // no wake-up can be lost for longer

constexpr auto kIdle = std::chrono::milliseconds(1000);

// Of this thread alone; it needs no rights, and may fail without harm.
void lower_priority() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice); }

at::Tensor allocate(int64_t bytes, bool pinned) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned)); }

std::span<std::byte> span_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// The addresses from the first element to the last, which may have gaps between them.
std::pair<uintptr_t, uintptr_t> extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {begin, begin + static_cast<uintptr_t>((last + 1) * static_cast<int64_t>(tensor.element_size()))};
}

}  // namespace

LazyCopier::LazyCopier(Parts parts)
    : parts_(std::move(parts)),
      memory_(allocate(parts_.ring_bytes, parts_.device.is_cuda())),
      ring_(span_of(memory_)),
      booked_(parts_.memory, base::MemoryUse::snapshot, parts_.ring_bytes) {
  if (!parts_.device.is_cuda()) std::memset(memory_.mutable_data_ptr(), 0, static_cast<size_t>(parts_.ring_bytes));  // its pages, now
  if (parts_.device.is_cuda()) beside_ = kernels::side_stream(parts_.device, kernels::SideStream::to_host);
  copier_ = std::thread([this] { copy_all(); });
  writer_ = std::thread([this] { write_all(); });
}

LazyCopier::~LazyCopier() {
  {
    Lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  writer_.join();  // after the version that is under way
  copier_.join();
}

double LazyCopier::since_begin() const { return base::seconds(parts_.clock.now() - begun_); }

void LazyCopier::lay_out(LazyVersion& version) {
  blocks_.clear();
  blocks_.reserve(version.blocks.size() + version.aside.size());
  std::vector<int64_t> touched;
  const auto add = [&](Block block) {
    block.bytes = static_cast<int64_t>(block.from.nbytes());
    const int64_t place = version.touched ? version.touched(block.from) : -1;
    touched.push_back(place < 0 ? std::numeric_limits<int64_t>::max() : place);
    blocks_.push_back(std::move(block));
  };
  for (size_t i = 0; i < version.blocks.size(); ++i) {
    add({.from = version.blocks[i].data, .index = i});
    for (const auto& sink : version.sinks)
      blocks_.back().remainder = std::max(blocks_.back().remainder, sink->page_remainder(version.blocks[i]));
    CAIRN_CHECK(blocks_.back().from.is_contiguous(), "a block that is not contiguous");
  }
  for (const auto& [from, to] : version.aside) add({.from = from, .to = to});
  std::vector<size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return touched[a] < touched[b]; });
  std::vector<Block> sorted;
  sorted.reserve(order.size());
  for (const size_t i : order) sorted.push_back(std::move(blocks_[i]));
  blocks_ = std::move(sorted);
  extents_.clear();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto [begin, end] = extent_of(blocks_[i].from);
    extents_.push_back({begin, end, end, i});
  }
  std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents_.size(); ++i) extents_[i].reach = std::max(extents_[i].end, extents_[i - 1].reach);
}

void LazyCopier::begin(LazyVersion version) {
  const Lock lock(mutex_);
  CAIRN_CHECK(!busy_ && unsafe_ == 0, "a version begins while another is under way");
  CAIRN_CHECK(!version.sinks.empty(), "a version without a sink");
  begun_ = parts_.clock.now();
  lay_out(version);
  version_ = std::move(version);
  filled_.clear();
  next_filled_ = next_queued_ = 0;
  left_to_copy_ = std::ssize(blocks_);
  unsafe_ = std::ssize(blocks_);
  failed_.assign(version_.sinks.size(), false);
  given_up_ = false;
  report_ = {.step = version_.step};
  for (const Block& block : blocks_) report_.bytes += block.bytes;
  has_report_ = false;
  ring_.forget_peak();
  if (beside_) {  // no copy may begin before the kernels of the update have run
    c10::Event updated(parts_.device.type());
    updated.record(kernels::current_stream(parts_.device));
    updated.block(*beside_);
  }
  busy_ = true;
  changed_.notify_all();
}

bool LazyCopier::done() const {
  const Lock lock(mutex_);
  return !busy_;
}

bool LazyCopier::wait_done(std::chrono::nanoseconds at_most) const {
  Lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [&] { return !busy_; });
}

std::optional<LazyReport> LazyCopier::take_report() {
  const Lock lock(mutex_);
  if (busy_ || !has_report_) return std::nullopt;
  has_report_ = false;
  return std::move(report_);
}

double LazyCopier::take_waited_s() {
  const Lock lock(mutex_);
  return base::seconds(std::exchange(waited_, std::chrono::nanoseconds(0)));
}

// ---- copying ----

// Reserves room for a queued block and copies it. False: the ring is full. The lock is released while it copies.
bool LazyCopier::try_copy(Block& block, Lock& lock) {
  if (!block.to.defined()) {
    block.room = ring_.reserve(block.bytes, block.remainder);
    if (block.room == nullptr && block.remainder >= 0 && next_filled_ == filled_.size())
      block.room = ring_.reserve(block.bytes);  // an empty ring that the remainder makes too small
    if (block.room == nullptr) return false;
  }
  block.state = State::copying;
  filled_.push_back(static_cast<size_t>(&block - blocks_.data()));
  lock.unlock();
  if (parts_.before_copy) parts_.before_copy(block.index);
  const std::chrono::nanoseconds began = parts_.clock.now();
  copy(block);
  const std::chrono::nanoseconds took = parts_.clock.now() - began;
  lock.lock();
  report_.copying_s += base::seconds(took);
  block.state = State::copied;
  --left_to_copy_;
  if (!beside_) leave_host_copy(block);
  if (left_to_copy_ == 0 && !beside_) report_.copied_s = since_begin();
  changed_.notify_all();
  return true;
}

void LazyCopier::leave_host_copy(Block& block) {
  block.state = State::on_host;
  block.from.reset();
  --unsafe_;
}

void LazyCopier::copy(Block& block) {
  if (!beside_) {
    void* const to = block.to.defined() ? block.to.mutable_data_ptr() : block.room;
    std::memcpy(to, block.from.const_data_ptr(), static_cast<size_t>(block.bytes));
    return;
  }
  const at::NoGradGuard no_gradient;
  const c10::StreamGuard copying(*beside_);
  const at::Tensor from = block.from.reshape({-1}).view(at::kByte);
  const at::Tensor to =
      block.to.defined() ? block.to.view({-1}).view(at::kByte) : memory_.narrow(0, block.room - span_of(memory_).data(), block.bytes);
  to.copy_(from, /*non_blocking=*/true);
  block.event.emplace(parts_.device.type());
  block.event->record(*beside_);
}

void LazyCopier::copy_all() {
  lower_priority();
  std::optional<c10::DeviceGuard> there;
  if (beside_) there.emplace(parts_.device);
  Lock lock(mutex_);
  for (;;) {
    while (next_queued_ < blocks_.size() && blocks_[next_queued_].state != State::queued) ++next_queued_;
    if (busy_ && !given_up_ && next_queued_ < blocks_.size() && try_copy(blocks_[next_queued_], lock)) continue;
    if (ends_ && !busy_) return;
    changed_.wait_for(lock, busy_ ? kCheckEvery : kIdle);
  }
}

// ---- the barrier ----

std::vector<size_t> LazyCopier::blocks_of(const at::Tensor& tensor) const {
  const auto [begin, end] = extent_of(tensor);
  std::vector<size_t> found;
  auto after = std::lower_bound(extents_.begin(), extents_.end(), end, [](const Extent& one, uintptr_t at) { return one.begin < at; });
  while (after != extents_.begin()) {
    --after;
    if (after->reach <= begin) break;
    if (after->end > begin) found.push_back(after->block);
  }
  std::sort(found.begin(), found.end());  // in the order of copying
  return found;
}

void LazyCopier::wait_for(Block& block, Lock& lock) {
  const auto limit = std::chrono::steady_clock::now() + kWaitLimit;
  while (block.state == State::queued || block.state == State::copying) {
    if (block.state == State::queued && try_copy(block, lock)) continue;
    changed_.wait_for(lock, kCheckEvery);
    if (std::chrono::steady_clock::now() > limit && block.state == State::queued) {
      given_up_ = true;
      if (!report_.failure)
        report_.failure =
            std::make_exception_ptr(Error(Error::Kind::disk, fmt::format("nothing was written for {} minutes", kWaitLimit.count())));
      drop_queued();
    }
  }
  if (block.state == State::copied && block.event) block.event->block(kernels::current_stream(parts_.device));
}

void LazyCopier::before_write(const at::Tensor& tensor) {
  if (unsafe_ == 0 || tensor.numel() == 0) return;
  Lock lock(mutex_);
  const std::chrono::nanoseconds began = parts_.clock.now();
  for (const size_t i : blocks_of(tensor)) wait_for(blocks_[i], lock);
  add_wait(parts_.clock.now() - began);
}

void LazyCopier::before_writing_all() {
  if (unsafe_ == 0) return;
  Lock lock(mutex_);
  const std::chrono::nanoseconds began = parts_.clock.now();
  for (Block& block : blocks_) wait_for(block, lock);
  add_wait(parts_.clock.now() - began);
}

void LazyCopier::add_wait(std::chrono::nanoseconds waited) {
  waited_ += waited;
  report_.waited_s += base::seconds(waited);
}

bool LazyCopier::would_wait(const at::Tensor& tensor) const {
  if (unsafe_ == 0 || tensor.numel() == 0) return false;
  const Lock lock(mutex_);
  for (const size_t i : blocks_of(tensor))
    if (blocks_[i].state == State::queued || blocks_[i].state == State::copying) return true;
  return false;
}

// ---- writing ----

bool LazyCopier::all_failed() const {
  return std::all_of(failed_.begin(), failed_.end(), [](bool failed) { return failed; });
}

// Nobody waits for what will not be written.
void LazyCopier::drop_queued() {
  for (Block& block : blocks_) {
    if (block.state != State::queued) continue;
    block.state = State::dropped;
    block.from.reset();
    --left_to_copy_;
    --unsafe_;
  }
  changed_.notify_all();
}

// Called without the lock.
void LazyCopier::fail_sink(size_t sink, std::exception_ptr why) {
  std::string text = "unknown";
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& error) {
    text = error.what();
  }
  version_.sinks[sink]->abort(text);
  const Lock lock(mutex_);
  failed_[sink] = true;
  if (!report_.failure) {
    report_.failure = std::move(why);
    report_.why_failed = text;
  }
  if (!all_failed()) return;
  given_up_ = true;
  drop_queued();
}

void LazyCopier::write(const Block& block) {
  for (size_t sink = 0; sink < version_.sinks.size(); ++sink) {
    if (failed_[sink]) continue;
    try {
      version_.sinks[sink]->write(block.index, {block.room, static_cast<size_t>(block.bytes)});
    } catch (const std::exception&) {
      fail_sink(sink, std::current_exception());
    }
  }
}

// Takes block after block until all are written, or dropped.
void LazyCopier::drain(Lock& lock) {
  while (next_filled_ < filled_.size() || left_to_copy_ > 0) {
    if (next_filled_ == filled_.size() || blocks_[filled_[next_filled_]].state == State::copying) {
      changed_.wait_for(lock, kCheckEvery);
      continue;
    }
    Block& block = blocks_[filled_[next_filled_]];
    lock.unlock();
    if (block.event) block.event->synchronize();
    lock.lock();
    if (block.state == State::copied) {
      leave_host_copy(block);
      if (unsafe_ == 0) report_.copied_s = since_begin();
      changed_.notify_all();
    }
    const bool in_ring = !block.to.defined();
    lock.unlock();
    if (in_ring) write(block);
    lock.lock();
    ++next_filled_;
    report_.ring_peak = std::max(report_.ring_peak, ring_.peak());
    if (in_ring) ring_.release_oldest();
    changed_.notify_all();
  }
}

void LazyCopier::write_version(Lock& lock) {
  const auto for_each_sink = [&](const std::function<void(snapshot::SnapshotSink&)>& act) {
    lock.unlock();
    for (size_t sink = 0; sink < version_.sinks.size(); ++sink) {
      if (failed_[sink]) continue;
      try {
        act(*version_.sinks[sink]);
      } catch (const std::exception&) {
        fail_sink(sink, std::current_exception());
      }
    }
    lock.lock();
  };
  std::optional<base::Trace::Span> traced;
  if (parts_.trace != nullptr) traced.emplace(parts_.trace->span("write", "snapshot"));
  for_each_sink([&](snapshot::SnapshotSink& sink) { sink.begin(version_.step, version_.blocks); });
  drain(lock);
  report_.written_s = since_begin();
  if (given_up_ && !all_failed()) {
    const std::exception_ptr why = report_.failure;
    for_each_sink([&](snapshot::SnapshotSink&) { std::rethrow_exception(why); });
  }
  for_each_sink([&](snapshot::SnapshotSink& sink) { sink.end(); });
  report_.ended_s = since_begin();
  LazyVersion over = std::exchange(version_, {});
  lock.unlock();
  over = {};  // frees what it held, without the lock
  lock.lock();
  has_report_ = true;
  busy_ = false;
  changed_.notify_all();
}

void LazyCopier::write_all() {
  lower_priority();
  std::optional<c10::DeviceGuard> there;
  if (beside_) there.emplace(parts_.device);
  Lock lock(mutex_);
  for (;;) {
    if (busy_) {
      write_version(lock);
    } else if (ends_) {
      return;
    } else {
      changed_.wait_for(lock, kIdle);
    }
  }
}

int64_t ring_bytes_of(const std::string& setting, int64_t state, int64_t largest, int local_ranks) {
  const int64_t least = 2 * (largest + 2 * 4096);
  if (setting == "auto") {
    const auto of_memory = static_cast<int64_t>(0.4 * static_cast<double>(base::available_bytes()) / std::max(1, local_ranks));
    return std::max(least, std::min(state + state / 4, of_memory));
  }
  const std::optional<int64_t> bytes = base::parse_bytes(setting);
  if (!bytes)
    base::fail_input("snapshot.host_bytes = \"{}\": not a size. Use \"auto\", or a number with a unit, as in \"512MiB\".", setting);
  if (*bytes < least)
    base::fail_input("snapshot.host_bytes = \"{}\": the largest block has {} bytes, and two must fit. Use {} bytes or more.", setting,
                     largest, least);
  if (static_cast<double>(*bytes) * std::max(1, local_ranks) > 0.8 * static_cast<double>(base::machine_bytes()))
    base::fail_input("snapshot.host_bytes = \"{}\": {} ranks of this machine would take more than 80 % of its memory. Use \"auto\".",
                     setting, std::max(1, local_ranks));
  return *bytes;
}

}  // namespace cairn::train
