#include "train/state/snapshot_barrier.h"

#include "kernels/aten.h"
#include "train/state/lazy_copier.h"

namespace cairn::train {
namespace {

uintptr_t first_address(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()); }

}  // namespace

void SnapshotBarrier::attach(LazyCopier* copier) {
  copier_ = copier;
  notes_ = copier != nullptr;
  noted_.clear();
}

bool SnapshotBarrier::active() const { return copier_ != nullptr && (notes_ || copier_->copying()); }

void SnapshotBarrier::before_write(const at::Tensor& tensor) {
  if (copier_ == nullptr || tensor.numel() == 0) return;
  if (notes_) noted_.try_emplace(first_address(tensor), Announced{first_address(tensor) + tensor.nbytes(), std::ssize(noted_)});
  copier_->before_write(tensor);
}

void SnapshotBarrier::before_writing_all() {
  if (copier_ != nullptr) copier_->before_writing_all();
}

bool SnapshotBarrier::would_wait(const at::Tensor& tensor) const { return copier_ != nullptr && copier_->would_wait(tensor); }

int64_t SnapshotBarrier::touched(const at::Tensor& tensor) const {
  auto after = noted_.upper_bound(first_address(tensor));
  if (after == noted_.begin()) return -1;
  const Announced& before = std::prev(after)->second;
  return first_address(tensor) < before.end ? before.place : -1;
}

}  // namespace cairn::train
