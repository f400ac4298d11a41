// Directions on a GPU: from tensors to pointers.
#include "kernels/optimizer/perturb_cuda.h"

#include <vector>

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/optimizer/perturb_kernel.h"

namespace cairn::kernels {
namespace {

DirectionLaunch launch_of(const Direction& of) { return {.key = of.random.key, .stream = of.random.stream, .coefficient = of.coefficient}; }

WeightsLaunch launch_of(const at::Tensor& out, const at::Tensor& weights, int64_t first, Noise noise) {
  return {.elements = elements_of(weights),
          .from = weights.const_data_ptr(),
          .to = out.mutable_data_ptr(),
          .count = weights.numel(),
          .first = first,
          .rademacher = noise == Noise::rademacher};
}

}  // namespace

bool perturb_on_cuda(const at::Tensor& out, const at::Tensor& weights, const Direction& direction, int64_t first, Noise noise) {
  if (!all_kernel_inputs(weights, out)) return false;
  const CudaDeviceGuard device(weights.device());
  check_launch(launch_perturb(launch_of(out, weights, first, noise), launch_of(direction), stream_of(weights)), "perturb");
  return true;
}

bool replay_on_cuda(const at::Tensor& weights, std::span<const Direction> directions, int64_t first, float rate, float keep, Noise noise) {
  if (!all_kernel_inputs(weights)) return false;
  const CudaDeviceGuard device(weights.device());
  std::vector<DirectionLaunch> list;
  list.reserve(directions.size());
  for (const Direction& one : directions) list.push_back(launch_of(one));
  const auto bytes = static_cast<int64_t>(list.size() * sizeof(DirectionLaunch));
  const at::Tensor there = at::from_blob(list.data(), {bytes}, at::kByte).to(weights.device());
  const ReplayLaunch replay{.directions = static_cast<const DirectionLaunch*>(there.const_data_ptr()),
                            .count = static_cast<int64_t>(list.size()),
                            .rate = rate,
                            .keep = keep};
  check_launch(launch_replay(launch_of(weights, weights, first, noise), replay, stream_of(weights)), "replay");
  return true;
}

}  // namespace cairn::kernels
