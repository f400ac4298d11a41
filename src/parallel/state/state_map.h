// Which rank has what of every parameter and of the state that belongs to its elements, and which of several ranks that have the same saves
// it. A pure function of model and plan: every rank computes it for all of them, and nothing is sent.
#pragma once
#include <cstdint>
#include <vector>

#include "mesh/fragment.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

class StateMap {
 public:
  struct Parts {
    const model::Model& model;
    const Plan& plan;
    std::vector<int> ranks;         // that step together, in order
    bool whole_parameters = false;  // as ParameterStore::Parts has it; likewise min_unit_elements
    int64_t min_unit_elements = 0;
  };
  explicit StateMap(const Parts& parts);

  // What one rank has.
  struct Holding {
    int rank = 0;  // in the list of ranks
    mesh::Fragment fragment;
    bool first_copy = true;  // of the ranks of its replica that hold the same part of the parameter; ZeRO may cut the others otherwise
    bool operator==(const Holding&) const = default;
  };
  // By parameter, in the order of the ranks.
  const std::vector<Holding>& holdings(size_t parameter) const { return holdings_[parameter]; }

  // A tensor to be saved, with a number for each element of a parameter or, where it is not `by_element`, as a whole on each rank that has
  // some of the parameter.
  struct Tensor {
    size_t parameter = 0;
    bool by_element = true;
    int64_t element_bytes = 4;
    std::vector<int64_t> shape;  // its own; of the parameter where it is by_element
  };
  // Who saves what of these tensors: by tensor, disjoint and complete. What several ranks have is divided over them so that each writes
  // about the same number of bytes. A tensor without elements belongs to the first rank.
  std::vector<std::vector<Holding>> divide(const std::vector<Tensor>& tensors) const;

 private:
  size_t ranks_ = 0;
  std::vector<std::vector<Holding>> holdings_;
};

}  // namespace cairn::parallel
