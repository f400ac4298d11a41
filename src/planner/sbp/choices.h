#pragma once
#include <limits>
#include <optional>
#include <vector>

#include "planner/sbp/infer.h"

namespace cairn::planner {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

// One way to share an operation out over all axes of a mesh.
struct Choice {
  std::vector<NdSbp> inputs;
  NdSbp output;
  double work = 0;   // what the rank with the most to do computes, seconds where the speed is known, else FLOPs
  double inner = 0;  // cost of sums inside the operation
};

// What can be chosen, and what is decided already.
struct PlacementProblem {
  const OpGraph& graph;
  Boxing& boxing;
  const InferOptions& options;
  std::vector<std::vector<Choice>> choices;   // by operation, in a fixed order
  std::vector<std::optional<NdSbp>> decided;  // by tensor: inputs, and what people have said

  const GraphTensor& tensor(int place) const { return graph.tensors[static_cast<size_t>(place)]; }
  // Of moving a tensor to a reader, and its gradient back; infinite where terms of a sum would be made of it.
  double transfer_cost(int tensor, const NdSbp& from, const NdSbp& to) const;
  // Of the gradient of a parameter that lies so.
  double gradient_cost(int parameter, const NdSbp& nd_sbp) const;
  NdSbp gradient_sbp(int parameter, const NdSbp& kept) const;
  bool computing_counts() const { return boxing.cost_model().flops_per_s > 0; }
};

// Refuses what people have fixed and cannot be: unknown tensors, dims that are not there, terms of a sum for an operation that cannot
// take them.
PlacementProblem make_problem(const OpGraph& graph, Boxing& boxing, const InferOptions& options);

// The graph with one choice for each operation.
PlacedGraph apply_choices(const PlacementProblem& problem, const std::vector<size_t>& chosen);

std::vector<size_t> choose_greedily(const PlacementProblem& problem);
// The best of all; none where it would take too long to find out.
std::optional<std::vector<size_t>> choose_best(const PlacementProblem& problem);
// The cheapest of every combination there is: what the search is checked against, on graphs of a few operations.
PlacedGraph brute_force(const PlacementProblem& problem);
// The best of all choices that differ along one axis only, axis by axis, as long as it helps.
std::vector<size_t> improve_by_axis(const PlacementProblem& problem, std::vector<size_t> chosen);

}  // namespace cairn::planner
