#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::train {

// Checksums of the loss and of every gradient of a step (kernels/tensor_checksum.h), to compare two runs of the same passes. The two are
// bitwise identical unless hardware or a driver computes wrongly.
class GradientChecksums {
 public:
  // `loss_sum` may be undefined. Gradients may change afterwards, not be taken away.
  GradientChecksums(const at::Tensor& loss_sum, const mesh::NamedTensors& gradients);

  // Throws where the others are not the same, naming what of all that differs was computed first: the loss, or the gradient of the last
  // parameter. Waits for the device.
  void expect_same(const GradientChecksums& again, int64_t step) const;

 private:
  const mesh::NamedTensors& gradients_;
  at::Tensor sums_;  // of each gradient, then of the loss; int64, on their device; undefined: there is neither
};

}  // namespace cairn::train
