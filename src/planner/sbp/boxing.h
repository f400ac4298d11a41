#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "mesh/layout_change.h"
#include "planner/sbp/signatures.h"

namespace cairn::planner {

// What messages between neighbours along an axis cost.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = 0;
};

// What a choice of signatures is judged by: seconds where links are known, else bytes over all ranks.
struct CostModel {
  std::map<std::string, LinkCost> links = {};  // by axis; empty: count bytes
  double flops_per_s = 0;                      // of a rank; 0: computing costs nothing, but breaks ties
};

// What a change of forms moves.
struct BoxingCost {
  int64_t bytes = 0;    // sent by all ranks together
  double cost = 0;      // bytes, or seconds
  std::string by = {};  // "all_gather", "reduce_scatter and all_gather", "slice"
  bool free() const { return bytes == 0; }
};

// Prices of every change of forms on one mesh, each computed once from the index sets that ranks hold (mesh::RedistributePlan): what is
// priced is what runs.
class Boxing {
 public:
  Boxing(mesh::Mesh mesh, CostModel cost_model);

  const mesh::Mesh& mesh() const { return mesh_; }
  const CostModel& cost_model() const { return cost_model_; }

  // A value that lies as `from` says, wanted as `to` says.
  BoxingCost forward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to);
  // Its gradient, on the way back: from what the reader makes to what the maker wants.
  BoxingCost backward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to);
  // A parameter's gradient, from the terms that backward leaves to how it is kept.
  BoxingCost gradient(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted);

  // About what it costs forward and, if there is a way back, backward: for comparing many choices. The same as the exact prices on small
  // meshes; on large ones, whose plans take long to make, from the sizes of what ranks hold.
  double estimate(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to, bool and_back);
  double estimate_gradient(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted);

  mesh::LayoutChange change(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to) const;
  mesh::LayoutChange gradient_change(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted) const;

 private:
  enum class Direction { forward, backward, gradient };
  BoxingCost cost(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to, Direction direction);

  mesh::Mesh mesh_;
  CostModel cost_model_;
  double estimate(const mesh::LayoutChange& change, int64_t item_bytes) const;

  std::map<std::string, BoxingCost> known_;
  std::map<std::string, double> estimated_;
};

// Whether a change makes terms of a sum out of a value, which costs nothing and gains nothing.
bool makes_partial(const NdSbp& from, const NdSbp& to);

}  // namespace cairn::planner
