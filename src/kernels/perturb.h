// Random directions that are looked up, never stored: added to weights, and summed into an update.
#pragma once
#include <cstdint>
#include <span>

#include <ATen/core/ATen_fwd.h>

#include "base/random.h"

namespace cairn::kernels {

enum class Noise { normal, rademacher };  // rademacher: -1 or 1, each as likely

// Element i of a direction is a function of its key and i alone, bit-equal on every machine, whatever the threads and whichever slice of a
// tensor is here: `first` is the index of the slice's first element.
struct Direction {
  base::Random random;
  float coefficient = 1;
};

// out[i] = weights[i] + coefficient * z[first + i], in float, rounded once to the type of `out` (fp32 or bf16). Both flat, on the CPU or on
// one GPU.
void perturb(const at::Tensor& out, const at::Tensor& weights, const Direction& direction, int64_t first, Noise noise);

// weights[i] = weights[i] * keep - rate * sum over the directions, in their order, of coefficient * z[first + i]; in float, each product
// and sum rounded on its own. One pass over the weights, however many directions there are.
void replay(const at::Tensor& weights, std::span<const Direction> directions, int64_t first, float rate, float keep, Noise noise);

// z[first ...] of one direction, without its coefficient.
void fill_direction(std::span<float> values, const base::Random& random, int64_t first, Noise noise);

}  // namespace cairn::kernels
