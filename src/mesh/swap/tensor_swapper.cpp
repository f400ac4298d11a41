// An item (a swapped tensor) is in one of these states:
//
//   zero      nobody has written it: its memory is made when it is held
//   away      on disk only
//   coming    a read is on its way, or done and not yet looked at
//   here      a buffer of the host tier has it: clean or changed, held or not
//
// What is here and not held stays until its room is needed (least recently used first), so a unit that backward reads as forward left it
// costs no second read. Room is looked for in this order: clean items, changed items (which are written first), writes on their way, and
// what was read ahead. A prefetch takes free room and clean items alone.
//
// On a GPU a held item has device memory beside its buffer; the copies wait for each other on the current stream.
#include "mesh/swap/tensor_swapper.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "base/check.h"
#include "base/clock.h"
#include "kernels/aten.h"

namespace cairn::mesh {

struct TensorSwapper::Item {
  Place place;
  at::Tensor tensor;
  int64_t bytes = 0;
  std::optional<memory::RecordId> record = {};  // in the disk tier
  memory::Buffer buffer = {};
  std::optional<memory::ReadHandle> coming = {};
  bool written = false;     // the disk has a version of it, or will have
  bool changed = false;     // the buffer is newer
  bool read_ahead = false;  // and nobody has held it since
  int64_t holds = 0;
  int64_t last_use = 0;

  bool is_here() const { return static_cast<bool>(buffer); }
  bool on_disk() const { return record.has_value(); }
};

namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; }

void set_memory(const at::Tensor& tensor, at::DataPtr memory) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

// The bytes of a buffer as a tensor like this one.
at::Tensor host_view(const memory::Buffer& buffer, const at::Tensor& like) {
  return at::from_blob(buffer.bytes().data(), like.sizes(), like.options().device(at::kCPU));
}

}  // namespace

TensorSwapper::TensorSwapper(std::unique_ptr<memory::Tier> tier, const base::Clock& clock) : tier_(std::move(tier)), clock_(clock) {}

TensorSwapper::~TensorSwapper() {
  for (const auto& one : items_) set_memory(one->tensor, at::DataPtr(nullptr, one->tensor.device()));
}

TensorSwapper::Item* TensorSwapper::find(const at::Tensor& tensor) const {
  if (!tensor.defined()) return nullptr;
  const auto found = by_storage_.find(storage_of(tensor));
  return found == by_storage_.end() ? nullptr : items_[found->second].get();
}

size_t TensorSwapper::index_of(const Item& item) const { return by_storage_.at(storage_of(item.tensor)); }

at::Tensor TensorSwapper::make(const Place& place, int64_t elements, const at::TensorOptions& options) {
  CAIRN_CHECK(place.home != memory::TierKind::device, "{}: tensors of the device tier are plain tensors", place.name);
  const at::Tensor tensor = at::empty({elements}, options);
  if (elements == 0) return tensor;
  set_memory(tensor, at::DataPtr(nullptr, tensor.device()));
  auto item = std::make_unique<Item>();
  item->place = place;
  item->tensor = tensor;
  item->bytes = static_cast<int64_t>(tensor.nbytes());
  if (place.home == memory::TierKind::disk) {
    item->record = tier_->disk().add(place.name, item->bytes, place.use);
  } else {
    item->buffer = tier_->host().take(item->bytes, place.use, place.name);
    std::memset(item->buffer.bytes().data(), 0, static_cast<size_t>(item->bytes));
    if (tensor.is_cpu()) attach(*item);
  }
  by_storage_[storage_of(tensor)] = items_.size();
  items_.push_back(std::move(item));
  return tensor;
}

void TensorSwapper::attach(Item& item) {
  if (item.tensor.is_cpu()) {
    set_memory(item.tensor, at::DataPtr(item.buffer.bytes().data(), at::kCPU));
    return;
  }
  const c10::DeviceGuard device(item.tensor.device());
  c10::StorageImpl& storage = *item.tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
  item.tensor.copy_(host_view(item.buffer, item.tensor));
}

void TensorSwapper::detach(Item& item) { set_memory(item.tensor, at::DataPtr(nullptr, item.tensor.device())); }

void TensorSwapper::leave(Item& item) {
  if (--item.holds > 0 || item.tensor.is_cpu()) return;
  if (item.changed) host_view(item.buffer, item.tensor).copy_(item.tensor);
  detach(item);
}

TensorSwapper::Hold::~Hold() {
  for (const size_t one : items_) swapper_->leave(*swapper_->items_[one]);
}

TensorSwapper::Hold TensorSwapper::hold(std::span<const at::Tensor> tensors, Access access) {
  Hold hold;
  hold.swapper_ = this;
  for (const at::Tensor& tensor : tensors) {
    Item* const item = find(tensor);
    if (!item) continue;
    const size_t index = index_of(*item);
    if (std::find(hold.items_.begin(), hold.items_.end(), index) != hold.items_.end()) continue;
    bring(*item, access);
    hold.items_.push_back(index);
  }
  for (const size_t one : hold.items_)
    if (access != Access::read) items_[one]->changed = true;
  return hold;
}

void TensorSwapper::bring(Item& item, Access access) {
  item.last_use = ++turn_;
  if (item.is_here()) {
    ++counters_.hits;
  } else if (item.coming) {
    const bool ready = item.coming->ready();
    const std::chrono::nanoseconds begun = clock_.now();
    memory::ReadHandle read = std::move(*item.coming);
    item.coming.reset();
    item.read_ahead = false;
    item.buffer = read.take();
    ++(ready ? counters_.hits : counters_.waits);
    counters_.wait_s += base::seconds(clock_.now() - begun);
  } else if (!item.written || access == Access::overwrite) {
    item.buffer = take(item);
    if (!item.written) std::memset(item.buffer.bytes().data(), 0, static_cast<size_t>(item.bytes));
    item.changed = true;
  } else {
    const std::chrono::nanoseconds begun = clock_.now();
    memory::ReadHandle read =
        tier_->disk().read_into(*item.record, take(item), {.io_class = item.place.io_class, .exclusive = true});
    item.buffer = read.take();
    ++counters_.waits;
    counters_.wait_s += base::seconds(clock_.now() - begun);
  }
  item.read_ahead = false;
  if (item.holds++ == 0 && (!item.tensor.is_cpu() || item.on_disk())) {
    try {
      attach(item);
    } catch (...) {
      --item.holds;
      throw;
    }
  }
}

bool TensorSwapper::prefetch(const at::Tensor& tensor) {
  Item* const item = find(tensor);
  if (!item || item->is_here() || item->coming || !item->written) return true;
  std::optional<memory::Buffer> buffer = take_if_free(*item);
  if (!buffer) {
    ++counters_.skipped;
    return false;
  }
  item->coming = tier_->disk().read_into(*item->record, std::move(*buffer), {.io_class = item->place.io_class, .exclusive = true});
  item->read_ahead = true;
  item->last_use = ++turn_;
  return true;
}

void TensorSwapper::start_write(Item& item) {
  detach(item);
  item.changed = false;
  item.written = true;
  writes_.push_back(tier_->disk().write(*item.record, std::move(item.buffer)));
  item.buffer = memory::Buffer();
}

void TensorSwapper::write_back(const at::Tensor& tensor) {
  Item* const item = find(tensor);
  if (!item || !item->on_disk() || !item->is_here() || item->holds > 0 || !item->changed) return;
  collect_writes();
  start_write(*item);
}

void TensorSwapper::flush() {
  for (const auto& one : items_)
    if (one->on_disk() && one->is_here() && one->changed && one->holds == 0) start_write(*one);
  while (wait_for_write()) {
  }
  if (tier_->has_disk()) tier_->disk().drain();
}

TensorSwapper::Since TensorSwapper::take_since() {
  const memory::DiskCounters disk = tier_->report().disk;
  Since since{.counts = {.hits = counters_.hits - counters_before_.hits,
                         .waits = counters_.waits - counters_before_.waits,
                         .wait_s = counters_.wait_s - counters_before_.wait_s,
                         .skipped = counters_.skipped - counters_before_.skipped},
              .read_bytes = disk.bytes_read() - disk_before_.bytes_read(),
              .written_bytes = disk.bytes_written() - disk_before_.bytes_written(),
              .busy_s = disk.busy_s - disk_before_.busy_s};
  if (since.busy_s > 0) since.depth = (disk.depth_s - disk_before_.depth_s) / since.busy_s;
  counters_before_ = counters_;
  disk_before_ = disk;
  return since;
}

// Errors of writes that are over.
void TensorSwapper::collect_writes() {
  while (!writes_.empty() && writes_.front().ready()) wait_for_write();
}

bool TensorSwapper::wait_for_write() {
  if (writes_.empty()) return false;
  memory::WriteHandle oldest = std::move(writes_.front());
  writes_.pop_front();
  oldest.wait();
  return true;
}

// The item that was used longest ago, of those that nobody holds.
bool TensorSwapper::evict_clean(const Item& for_whom) {
  Item* oldest = nullptr;
  for (const auto& one : items_)
    if (one.get() != &for_whom && one->on_disk() && one->is_here() && one->holds == 0 && !one->changed && one->written &&
        (!oldest || one->last_use < oldest->last_use))
      oldest = one.get();
  if (!oldest) return false;
  detach(*oldest);
  oldest->buffer = memory::Buffer();
  return true;
}

bool TensorSwapper::evict_dirty() {
  Item* oldest = nullptr;
  for (const auto& one : items_)
    if (one->on_disk() && one->is_here() && one->holds == 0 && (!oldest || one->last_use < oldest->last_use)) oldest = one.get();
  if (!oldest) return false;
  start_write(*oldest);
  return true;
}

bool TensorSwapper::evict_read_ahead() {
  Item* latest = nullptr;
  for (const auto& one : items_)
    if (one->coming && (!latest || one->last_use > latest->last_use)) latest = one.get();
  if (!latest) return false;
  memory::ReadHandle read = std::move(*latest->coming);
  latest->coming.reset();
  latest->read_ahead = false;
  read.cancel();
  try {
    (void)read.take();  // its buffer is in the pool once it is over
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::cancelled) throw;
  }
  return true;
}

std::optional<memory::Buffer> TensorSwapper::take_if_free(const Item& item) {
  collect_writes();
  for (;;) {
    if (auto buffer = tier_->host().try_take(item.bytes, item.place.use, item.place.name)) return buffer;
    if (!evict_clean(item)) return std::nullopt;
  }
}

memory::Buffer TensorSwapper::take(const Item& item) {
  for (;;) {
    if (auto buffer = take_if_free(item)) return std::move(*buffer);
    if (evict_dirty() || wait_for_write() || evict_read_ahead()) continue;
    return tier_->host().take(item.bytes, item.place.use, item.place.name);  // throws: who has the rest
  }
}

}  // namespace cairn::mesh
