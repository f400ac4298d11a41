#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

// Boxes of a logical tensor and where they lie in memory here.
class BoxViews {
 public:
  BoxViews() = default;
  // A rank's local tensor.
  BoxViews(const LocalShard& local_shard, const at::Tensor& local);
  // A new buffer that holds these boxes one after the other.
  BoxViews(std::vector<Box> boxes, const at::TensorOptions& options);

  // A box, inside one of those held, as a view.
  at::Tensor view(const Box& box) const;

 private:
  std::vector<Box> boxes_;
  std::vector<at::Tensor> views_;
};

// The views' elements one after the other, as one flat tensor: the memory itself where it lies so, else a copy.
at::Tensor joined(const std::vector<at::Tensor>& views, const at::TensorOptions& options);

// A flat buffer for elements that belong into these views, one after the other: the memory itself where it lies so, else a new buffer whose
// elements `unpack` copies to their places.
class StagingBuffer {
 public:
  StagingBuffer(std::vector<at::Tensor> views, const at::TensorOptions& options);
  const at::Tensor& flat() const { return flat_; }
  void pack() const;    // fills the buffer from the views
  void unpack() const;  // and back

 private:
  std::vector<at::Tensor> views_;
  at::Tensor flat_;
  bool in_place_ = false;
};

}  // namespace cairn::mesh
