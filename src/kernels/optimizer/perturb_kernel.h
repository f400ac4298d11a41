// The arguments of the kernels for random directions.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct DirectionLaunch {
  uint64_t key, stream;  // of a base::Random
  float coefficient;
};

struct WeightsLaunch {
  Elements elements;
  const void* from;
  void* to;  // may be `from`
  int64_t count, first;
  bool rademacher;
};

cudaError_t launch_perturb(const WeightsLaunch& weights, const DirectionLaunch& direction, cudaStream_t stream);

struct ReplayLaunch {
  const DirectionLaunch* directions;  // on the device
  int64_t count;
  float rate, keep;
};
cudaError_t launch_replay(const WeightsLaunch& weights, const ReplayLaunch& replay, cudaStream_t stream);

}  // namespace cairn::kernels
