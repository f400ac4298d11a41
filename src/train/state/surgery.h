#pragma once
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/surgery.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Job;

// Operates on the parameters of a run between two steps: their values, moments, counts of updates, and what sync rules keep for their
// elements. However they are sharded, the ranks that hold parts of a tensor put it together, each computes the result, and keeps its own
// part; nothing is sent where each has all of it. Collective: the same call on all ranks of a step group, and on all islands after the
// same step.
//
// Where trained tensors are rearranged with others that are not, islands that step separately go on from the parameters that they have in
// common (Sync::global_parameters), so that all of them freeze the same values.
//
// Refuses optimizers whose state is not by element, and sync rules whose messages may be under way (SyncNeeds::may_rearrange).
void operate(Job& job, const optim::Surgery& surgery);

// The same in parts, for values that should not all be in memory at once.
class SurgeryInParts {
 public:
  explicit SurgeryInParts(Job& job);
  ~SurgeryInParts();
  void apply(const optim::Surgery& surgery);
  // The ranks of the step group that hold any part of these parameters; null: this rank does not.
  comm::Group* holders(const std::vector<size_t>& parameters) const;
  // The whole parameters, on those ranks; empty elsewhere. Of islands that step separately, those that they have in common. Do not write to
  // them.
  std::vector<at::Tensor> whole(const std::vector<size_t>& parameters) const;
  // Passes read the new values from here on. Collective.
  void finish();

 private:
  class Operation;
  Job& job_;
  std::unique_ptr<Operation> operation_;
};

// A whole parameter, in fp32 on every rank of the step group; of islands that step separately, the one that they have in common. May share
// memory with the run's. Collective.
at::Tensor whole_parameter(Job& job, size_t parameter);

}  // namespace cairn::train
