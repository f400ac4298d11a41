#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::train {

struct Settings;

// What passes over a batch came to, in a few numbers: one for the bits of each gradient and of the loss (kernels/tensor_checksum.h). To be
// held against those of the same passes made again, which have the same bits unless something has computed wrong.
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

// What train.check_every does not go with, by the recipe alone.
void check_repeats(const Settings& settings);

}  // namespace cairn::train
