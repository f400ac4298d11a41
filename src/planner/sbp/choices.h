#pragma once
#include <limits>
#include <optional>
#include <vector>

#include "planner/sbp/infer.h"

namespace cairn::planner {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

// One way to run an operation in parallel: a signature for each axis of the mesh.
struct Choice {
  std::vector<NdSbp> inputs;
  NdSbp output;
  double work = 0;   // of the busiest rank: seconds where its speed is known, else FLOPs
  double inner = 0;  // cost of messages inside the operation
};

// What can be chosen, and what is fixed already.
struct PlacementProblem {
  const OpGraph& graph;
  Boxing& boxing;
  const InferOptions& options;
  std::vector<std::vector<Choice>> choices;   // by operation, in a fixed order
  std::vector<std::optional<NdSbp>> decided;  // by tensor: inputs, and what the caller has fixed

  const GraphTensor& tensor(int place) const { return graph.tensors[static_cast<size_t>(place)]; }
  // Of bringing a tensor to a reader, and its gradient back; kInfeasible where it would become a partial sum.
  double transfer_cost(int tensor, const NdSbp& from, const NdSbp& to) const;
  // Of reducing the gradient of a parameter with this placement.
  double gradient_cost(int parameter, const NdSbp& nd_sbp) const;
  NdSbp gradient_sbp(int parameter, const NdSbp& kept) const;
  bool computing_counts() const { return boxing.cost_model().flops_per_s > 0; }
};

// Throws bad_input for fixed placements that cannot be: unknown tensors, dims that do not exist, partial sums for an operation that is not
// linear in them.
PlacementProblem make_problem(const OpGraph& graph, Boxing& boxing, const InferOptions& options);

// The graph with one choice for each operation.
PlacedGraph apply_choices(const PlacementProblem& problem, const std::vector<size_t>& chosen);

std::vector<size_t> choose_greedily(const PlacementProblem& problem);
// The best choices together, by variable elimination (search.cpp); none where that would take too long.
std::optional<std::vector<size_t>> choose_best(const PlacementProblem& problem);
// The cheapest of all combinations: what the search is tested against, on graphs of a few operations.
PlacedGraph brute_force(const PlacementProblem& problem);
// Local search: the best choices that differ along one axis only, axis by axis, as long as the cost falls.
std::vector<size_t> improve_by_axis(const PlacementProblem& problem, std::vector<size_t> chosen);

}  // namespace cairn::planner
