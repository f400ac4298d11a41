#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::train {

// Checksums of the loss and of every gradient of a step (kernels/tensor_checksum.h), to compare two runs of the same passes. Their results
// are bitwise identical unless hardware or a driver computes wrongly.
class GradientChecksums {
 public:
  // `loss_sum` may be undefined. The list of gradients is borrowed; the values may change afterwards.
  GradientChecksums(const at::Tensor& loss_sum, const mesh::NamedTensors& gradients);

  // Throws `diverged` if a checksum differs. The message names the differing tensor that was computed first: the loss, or the gradient of
  // the last parameter, because backward starts there. Waits for the device.
  void expect_same(const GradientChecksums& again, int64_t step) const;

 private:
  const mesh::NamedTensors& gradients_;
  at::Tensor sums_;  // int64 on their device: of each gradient, then of the loss; undefined if there is neither
};

}  // namespace cairn::train
