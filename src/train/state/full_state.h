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

// One tensor of a run's state as snapshots have it, whole, and what this rank keeps of it.
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  size_t parameter = 0;          // that it belongs to, by place in the model
  bool by_element = true;        // it has a number for each of the parameter's; otherwise the rank that keeps the parameter has it whole
  at::Tensor mine = {};          // undefined: nothing
  mesh::Interval elements = {};  // of the parameter's part here
};

// All of them, alike on all ranks but for `mine`: the parameters, and what the optimizer keeps.
std::vector<StateTensor> parameter_state(const Job& job);
std::vector<StateTensor> optimizer_state(Job& job);
// The model that the sync calls agreed on; the parameters themselves where that is what it is.
std::vector<StateTensor> model_state(Job& job);
// What training works on where that is not the model: the trained parameters of this replica. Else nothing.
std::vector<StateTensor> live_state(Job& job);
// What the sync keeps for each element of the parameters after `step`.
std::vector<StateTensor> sync_state(Job& job, int64_t step);

// Whole tensors on the company's first rank, none elsewhere. Collective; where every rank keeps everything, no copy is made.
mesh::NamedTensors gather_whole(const Job& job, const std::vector<StateTensor>& state);

// What each rank of the company has to itself, by rank, on its first rank; elsewhere nothing. All must have the same names, and flat
// floats. Collective.
std::vector<mesh::NamedTensors> gather_ranks(const Job& job, const mesh::NamedTensors& mine);

// Writes this rank's part of each. Refuses a section that holds other tensors.
void load(const Job& job, const snapshot::OpenSnapshot& from, const std::string& section, const std::vector<StateTensor>& into);

}  // namespace cairn::train
