#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

// Boxes of a logical tensor, each with a view of the memory that holds it on this rank.
class BoxViews {
 public:
  BoxViews() = default;
  // The boxes of a rank's local tensor.
  BoxViews(const LocalShard& local_shard, const at::Tensor& local);
  // A new buffer with these boxes one after the other.
  BoxViews(std::vector<Box> boxes, const at::TensorOptions& options);

  // A view of a box that lies inside one of these.
  at::Tensor view(const Box& box) const;

 private:
  std::vector<Box> boxes_;
  std::vector<at::Tensor> views_;
};

// The elements of all views as one flat tensor: without a copy where they are adjacent in memory already.
at::Tensor joined(const std::vector<at::Tensor>& views, const at::TensorOptions& options);

// A flat buffer for the elements of some views, as a collective needs it. Where the views are adjacent in memory the buffer is that memory;
// otherwise it is new, and pack and unpack copy.
class StagingBuffer {
 public:
  StagingBuffer(std::vector<at::Tensor> views, const at::TensorOptions& options);
  const at::Tensor& flat() const { return flat_; }
  void pack() const;    // views -> buffer
  void unpack() const;  // buffer -> views

 private:
  std::vector<at::Tensor> views_;
  at::Tensor flat_;
  bool in_place_ = false;
};

}  // namespace cairn::mesh
