#pragma once
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/state/parameter_store.h"

namespace cairn::parallel {

// How the ranks that take steps together (step_group_of) put whole tensors together from what each of them keeps: for snapshots, samples
// and comparisons. Every rank can tell who keeps what; whoever keeps a part first (of its copies and replicas) sends it to their first.
class FullTensorGather {
 public:
  struct Parts {
    comm::World& world;
    const model::Model& model;
    const Plan& plan;
    bool whole_parameters = false;  // as the store was told
    int64_t min_unit_elements = 0;
  };
  explicit FullTensorGather(Parts parts);

  // Whether every rank keeps all of every parameter, so that there is nothing to put together.
  bool trivial() const { return trivial_; }

  // The whole of one parameter, or of what an optimizer keeps for each of its elements, on the first rank; undefined elsewhere. `mine` is
  // this rank's part (of ParameterSlice::value's elements, fp32), undefined where it keeps none. Collective.
  at::Tensor gather(size_t parameter, const at::Tensor& mine, std::string_view what) const;
  // Likewise of a tensor that belongs to a parameter as a whole and is on the rank that keeps it.
  at::Tensor gather_whole(size_t parameter, const at::Tensor& mine, const std::vector<int64_t>& shape, std::string_view what) const;

 private:
  struct Source {
    int rank = 0;
    mesh::Interval elements = {};  // of the rank's local tensor of the parameter
  };
  int place_of(int rank) const;  // among the company

  comm::Group& step_group_;
  int rank_ = 0;  // in the world; likewise the sources'
  const model::Model& model_;
  bool trivial_ = false;
  std::vector<std::vector<Source>> sources_;                   // by parameter, in rank order
  std::vector<std::map<int, mesh::LocalShard>> local_shards_;  // by parameter, of its sources
};

}  // namespace cairn::parallel
