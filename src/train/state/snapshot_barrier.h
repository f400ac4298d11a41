#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mesh/write_barrier.h"

namespace cairn::train {

class LazyCopier;

// The job's write barrier: those who change saved tensors announce it here, and wait for the lazy copies of them, if there are any. Until
// the first lazy save it also notes in which order tensors are announced, so that what the update touches first is copied first.
class SnapshotBarrier final : public mesh::WriteBarrier {
 public:
  // From now on this copier is waited for; null: none. It is borrowed.
  void attach(LazyCopier* copier);

  void before_write(const at::Tensor& tensor) override;
  void before_writing_all() override;
  bool would_wait(const at::Tensor& tensor) const override;
  bool active() const override;

  // The place of a tensor in the order of announcements, from 0; -1: it was not announced.
  int64_t touched(const at::Tensor& tensor) const;
  void stop_noting() { notes_ = false; }

 private:
  struct Announced {
    uintptr_t end;
    int64_t place;
  };

  LazyCopier* copier_ = nullptr;
  bool notes_ = false;
  std::map<uintptr_t, Announced> noted_;  // by first address
};

}  // namespace cairn::train
