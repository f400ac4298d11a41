// Random directions of sharded parameters: a rank generates its slice of a direction of the whole tensor.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/perturb.h"
#include "mesh/local_shard.h"

namespace cairn::sync {

// What of a parameter this rank's local tensor holds.
struct ShardedParameter {
  std::vector<int64_t> shape;   // of the whole parameter
  mesh::LocalShard shard = {};  // no dims: all of it
};

// kernels::perturb and kernels::replay for elements [begin, begin + numel) of the local tensor, which are flat and contiguous. The result
// is bitwise identical to that slice of the whole tensor's result. Shards that are not a few runs of the whole tensor (columns) need a
// temporary tensor of the parameter's whole size.
void perturb_shard(const at::Tensor& out, const at::Tensor& weights, const ShardedParameter& parameter, int64_t begin,
                   const kernels::Direction& direction, kernels::Noise noise);
void replay_shard(const at::Tensor& weights, const ShardedParameter& parameter, int64_t begin,
                  std::span<const kernels::Direction> directions, float rate, float keep, kernels::Noise noise);

}  // namespace cairn::sync
