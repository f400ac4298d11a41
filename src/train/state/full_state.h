#pragma once
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "mesh/named_tensor.h"

namespace cairn::snapshot {
class OpenSnapshot;
}

namespace cairn::train {

struct Job;

// One full tensor of a run's state, as a snapshot stores it, and the slice of it that this rank keeps.
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  size_t parameter = 0;    // the parameter that it belongs to, by index in the model
  bool by_element = true;  // one number for each element of the parameter; false: not sharded, whole where the parameter's shards are
  at::ScalarType dtype = at::kFloat;
  at::Tensor mine = {};          // the slice of this rank; undefined: none
  mesh::Interval elements = {};  // the elements of `mine` within this rank's tensor-parallel shard of the parameter
};

// The parameters, and the optimizer state. The lists are identical on all ranks, except for `mine`.
std::vector<StateTensor> parameter_state(const Job& job);
std::vector<StateTensor> optimizer_state(Job& job);
// The model as snapshots store it: Sync::global_parameters() if the sync rule keeps such a copy, otherwise the parameters.
std::vector<StateTensor> model_state(Job& job);
// The trained parameters of this replica, if they differ from model_state(); otherwise empty.
std::vector<StateTensor> live_state(Job& job);
// The state that sync rules keep for each element of the parameters after `step` (Sync::elements).
std::vector<StateTensor> sync_state(Job& job, int64_t step);

// Gathers full tensors on the first rank of the step group; other ranks get none. Collective. Without sharding no copy is made.
mesh::NamedTensors gather_whole(const Job& job, const std::vector<StateTensor>& state);

// Copies this rank's slice of each tensor from a section of the snapshot. Refuses a section that holds other tensors.
void load(const Job& job, const snapshot::OpenSnapshot& from, const std::string& section, const std::vector<StateTensor>& into);

}  // namespace cairn::train
