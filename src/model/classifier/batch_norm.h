#pragma once
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"
#include "model/call.h"

namespace cairn::model {

// Batch normalisation whose result depends on micro-batches as little as it can. In training a micro-batch is normalised by its own mean
// and variance; what evaluation uses instead, the running ones, change once a step, by the mean and variance over all micro-batches and
// replicas of it (E[x^2] - E[x]^2), as if the batch had not been cut. Computing a block again changes nothing.
//
// Buffers NAME.running_mean, NAME.running_var [channels], saved with snapshots, and NAME.pending, double [2 channels + 1]: sums, sums of
// squares and the count since the last step.

inline constexpr double kBatchNormMomentum = 0.1;

void add_batch_norm_buffers(Buffers& buffers, const std::string& name, int64_t channels, const at::TensorOptions& options);

// x [samples, channels, ...]; differentiable. Takes notice of the batch in training alone (Call::needs).
at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, const std::string& name, const Call& call,
                      double eps = 1e-5);

// After a step: pending sums, added up over the replicas by `sum` (in place), move the running values and begin anew. `skipped`: they are
// forgotten.
void commit_batch_norms(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum);

// The buffers that training changes and snapshots hold, by name.
mesh::NamedTensors running_buffers(const Buffers& buffers);

}  // namespace cairn::model
