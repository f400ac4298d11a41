#pragma once
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"
#include "model/call.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// Batch normalisation for micro-batches and replicas. In training a micro-batch is normalised by its own mean and variance. The running
// statistics, which evaluation uses, change once per step, by the mean and variance over all micro-batches and replicas (E[x^2] - E[x]^2),
// as if the batch had not been divided. Recomputing a block does not change them.
//
// With Batch::norm_samples = n the samples of a pass are normalised in groups of n, and one affine map follows. The statistics of a step
// are those of its groups together, which for groups of one size is the mean and variance over all samples:
//
//   mean = avg(mean_g)        var = avg(var_g) + avg((mean_g - mean)^2)
//
// Buffers NAME.running_mean, NAME.running_var [channels], saved with snapshots, and NAME.pending, double [2 channels + 1]: sums, sums of
// squares and the count since the last step.

inline constexpr double kBatchNormMomentum = 0.1;

void add_batch_norm_buffers(Buffers& buffers, const std::string& name, int64_t channels, const at::TensorOptions& options);

// What is normalised together: the samples of a pass in `groups`, or those of `ranks` neighbours of `over` in one.
struct NormGroups {
  int64_t groups = 1;
  int ranks = 1;
  comm::Group* over = nullptr;  // of all ranks that have samples of their own; null: ranks = 1
};
NormGroups norm_groups(int64_t samples, const Call& call);

// Whether a pass normalises by the statistics of its own samples. Otherwise it uses the running ones.
bool uses_batch_statistics(const Call& call);

// Adds to the pending sums: of `count` values by channel, the sums and the sums of squares (double [channels]).
void add_pending(const std::string& name, const Call& call, const at::Tensor& sums, const at::Tensor& squares, double count);

// x [samples, channels, ...]; differentiable. Adds to the pending sums where it uses the statistics of the batch. Groups over ranks have a
// block of their own (batch_norm_block.h).
at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& shift, const std::string& name, const Call& call,
                      double eps = 1e-5);

// After a step: sums the pending statistics over the replicas with `sum` (in place), updates the running values and resets the pending
// ones. `skipped`: only resets them. `momentum`: the share of the new values; 1 replaces the running ones.
void commit_batch_norms(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum,
                        double momentum = kBatchNormMomentum);

// The running statistics, by name: the buffers that snapshots hold.
mesh::NamedTensors running_buffers(const Buffers& buffers);

}  // namespace cairn::model
