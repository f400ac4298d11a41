#pragma once
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/state/parameter_store.h"

namespace cairn::parallel {

// Puts whole tensors together from the shards of the ranks that step together (step_group_of): for snapshots, samples and comparisons.
// Every rank computes who owns what. Of several ranks that own the same, the first sends; the first rank of the step group receives.
class FullTensorGather {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    bool whole_parameters = false;  // as ParameterStore::Parts has it; likewise min_unit_elements
    int64_t min_unit_elements = 0;
  };
  explicit FullTensorGather(Parts parts);

  // Whether every rank has all of every parameter, so that nothing needs to be gathered.
  bool trivial() const { return trivial_; }

  // One whole parameter, or state with an element for each of its elements, on the CPU of the first rank; undefined on other ranks.
  // `mine`: this rank's slice (as many elements as ParameterSlice::value), undefined where it has none. `dtype` is that of the result, and
  // of what is sent: integers stay exact. Collective.
  at::Tensor gather(size_t parameter, const at::Tensor& mine, std::string_view what, at::ScalarType dtype = at::kFloat) const;
  // The same for a tensor that belongs to a parameter as a whole and is, identical, on the ranks that own the parameter's shards. A copy.
  at::Tensor gather_whole(size_t parameter, const at::Tensor& mine, const std::vector<int64_t>& shape, std::string_view what,
                          at::ScalarType dtype = at::kFloat) const;

 private:
  struct Source {
    int rank = 0;
    mesh::Interval elements = {};  // of the rank's local tensor of the parameter
  };
  int place_of(int rank) const;  // in the step group

  comm::Group& step_group_;
  int rank_ = 0;  // in the world, like those of the sources
  const model::Model& model_;
  bool trivial_ = false;
  std::vector<std::vector<Source>> sources_;                   // by parameter, in rank order
  std::vector<std::map<int, mesh::LocalShard>> local_shards_;  // by parameter, of its sources
};

}  // namespace cairn::parallel
