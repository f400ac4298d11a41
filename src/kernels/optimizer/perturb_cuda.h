// Random directions on a GPU. A build without CUDA has these functions too; they return false.
#pragma once
#include <cstdint>
#include <span>

#include <ATen/core/ATen_fwd.h>

#include "kernels/perturb.h"

namespace cairn::kernels {

// As in perturb.h. False: no kernel for these tensors; nothing was done.
bool perturb_on_cuda(const at::Tensor& out, const at::Tensor& weights, const Direction& direction, int64_t first, Noise noise);
bool replay_on_cuda(const at::Tensor& weights, std::span<const Direction> directions, int64_t first, float rate, float keep, Noise noise);

}  // namespace cairn::kernels
