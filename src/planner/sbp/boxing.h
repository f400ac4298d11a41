#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "mesh/layout_change.h"
#include "planner/sbp/signatures.h"

namespace cairn::planner {

// A link between neighbours along an axis.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = 0;
};

// How placements are costed: in seconds where links are known, else in bytes sent by all ranks.
struct CostModel {
  std::map<std::string, LinkCost> links = {};  // by axis; empty: count bytes
  double flops_per_s = 0;                      // of a rank; 0: computation costs nothing, but breaks ties
};

// The cost of one redistribution.
struct BoxingCost {
  int64_t bytes = 0;    // sent by all ranks together
  double cost = 0;      // bytes, or seconds
  std::string by = {};  // "all_gather", "reduce_scatter and all_gather", "slice"
  bool free() const { return bytes == 0; }
};

// The cost of every redistribution on one mesh. Each is computed once, from the redistribution plan that would run
// (mesh::RedistributePlan). Not thread-safe: it caches.
class Boxing {
 public:
  Boxing(mesh::Mesh mesh, CostModel cost_model);

  const mesh::Mesh& mesh() const { return mesh_; }
  const CostModel& cost_model() const { return cost_model_; }

  // Of a value, from `from` to `to`.
  BoxingCost forward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to);
  // Of its gradient in backward: from the dual of `to` to the dual of `from`.
  BoxingCost backward(const GraphTensor& tensor, const NdSbp& from, const NdSbp& to);
  // Of a parameter's gradient: from the partial sums that backward leaves to `wanted`.
  BoxingCost gradient(const GraphTensor& parameter, const NdSbp& kept, const NdSbp& wanted);

  // The cost forward and, with `and_back`, backward, for comparing many choices. Exact on small meshes; on large ones, whose plans take
  // long to make, estimated from the sizes of what ranks hold.
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

// Whether a change turns a value into partial sums along some axis, which costs nothing and gains nothing.
bool makes_partial(const NdSbp& from, const NdSbp& to);

}  // namespace cairn::planner
