#pragma once
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"
#include "model/call.h"

namespace cairn::model {

// Batch normalisation for micro-batches and replicas. In training a micro-batch is normalised by its own mean and variance. The running
// statistics, which evaluation uses, change once per step, by the mean and variance over all micro-batches and replicas (E[x^2] - E[x]^2),
// as if the batch had not been divided. Recomputing a block does not change them.
//
// Buffers NAME.running_mean, NAME.running_var [channels], saved with snapshots, and NAME.pending, double [2 channels + 1]: sums, sums of
// squares and the count since the last step.

inline constexpr double kBatchNormMomentum = 0.1;

void add_batch_norm_buffers(Buffers& buffers, const std::string& name, int64_t channels, const at::TensorOptions& options);

// x [samples, channels, ...]; differentiable. Updates the pending sums in training only (Call::needs).
at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, const std::string& name, const Call& call,
                      double eps = 1e-5);

// After a step: sums the pending statistics over the replicas with `sum` (in place), updates the running values and resets the pending
// ones. `skipped`: only resets them.
void commit_batch_norms(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum);

// The running statistics, by name: the buffers that snapshots hold.
mesh::NamedTensors running_buffers(const Buffers& buffers);

}  // namespace cairn::model
