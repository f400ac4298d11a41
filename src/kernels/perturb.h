// Zeroth-order optimisation (MeZO, arXiv:2305.17333): random directions z that are regenerated from a key and never stored. They perturb
// weights for a loss evaluation and are summed into an update.
#pragma once
#include <cstdint>
#include <span>

#include <ATen/core/ATen_fwd.h>

#include "base/random.h"

namespace cairn::kernels {

enum class Noise { normal, rademacher };  // rademacher: -1 or 1 with equal probability

// Element i of a direction is a function of the key and i alone, bitwise identical on all machines and for any number of threads. A rank
// may hold a slice of the tensor; `first` is the index of its first element.
struct Direction {
  base::Random random;
  float coefficient = 1;
};

// Overwrites out: out[i] = weights[i] + coefficient * z[first + i], computed in fp32 and rounded once to the dtype of `out` (fp32 or bf16).
// Both are flat, on the CPU or on one GPU.
void perturb(const at::Tensor& out, const at::Tensor& weights, const Direction& direction, int64_t first, Noise noise);

// In place: weights[i] = weights[i] * keep - rate * sum_d coefficient_d * z_d[first + i], with the directions in their order. In fp32,
// without fused multiply-add. One pass over the weights for any number of directions.
void replay(const at::Tensor& weights, std::span<const Direction> directions, int64_t first, float rate, float keep, Noise noise);

// Overwrites values with z[first ...] of one direction, without the coefficient.
void fill_direction(std::span<float> values, const base::Random& random, int64_t first, Noise noise);

}  // namespace cairn::kernels
