#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::train {

// What passes over a batch came to, in a few numbers: the loss, and of each gradient the sum of its bits as whole numbers. To be held
// against those of the same passes made again, which have the same bits unless something has computed wrong.
class GradientSums {
 public:
  // `loss_sum` may be undefined. Gradients may change afterwards, not be taken away.
  GradientSums(const at::Tensor& loss_sum, const mesh::NamedTensors& gradients);

  // Throws where the others are not the same, naming the first of what differs. Waits for the device.
  void expect_same(const GradientSums& again, int64_t step) const;

 private:
  const mesh::NamedTensors& gradients_;
  at::Tensor sums_;  // of each gradient, then of the loss; int64, on their device; undefined: there is neither
};

}  // namespace cairn::train
