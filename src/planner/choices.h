#pragma once
#include <limits>
#include <optional>
#include <vector>

#include "planner/infer.h"

namespace cairn::planner {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// One way to share an operation out over all axes of a mesh.
struct Choice {
  std::vector<Forms> inputs;
  Forms output;
  double work = 0;   // what the rank with the most to do computes, seconds where the speed is known, else FLOPs
  double inner = 0;  // cost of sums inside the operation
};

// What can be chosen, and what is decided already.
struct Problem {
  const OpGraph& graph;
  Boxing& boxing;
  const InferOptions& options;
  std::vector<std::vector<Choice>> choices;   // by operation, in a fixed order
  std::vector<std::optional<Forms>> decided;  // by tensor: inputs, and what people have said

  const GraphTensor& tensor(int place) const { return graph.tensors[static_cast<size_t>(place)]; }
  // Of moving a tensor to a reader, and its gradient back; infinite where terms of a sum would be made of it.
  double move(int tensor, const Forms& from, const Forms& to) const;
  // Of the gradient of a parameter that lies so.
  double keep(int parameter, const Forms& forms) const;
  Forms gradient_forms(int parameter, const Forms& kept) const;
  bool computing_counts() const { return boxing.prices().flops_per_s > 0; }
};

// Refuses what people have fixed and cannot be: unknown tensors, dims that are not there, terms of a sum for an operation that cannot
// take them.
Problem pose(const OpGraph& graph, Boxing& boxing, const InferOptions& options);

// The graph with one choice for each operation.
Placed placed_by(const Problem& problem, const std::vector<size_t>& chosen);

std::vector<size_t> choose_greedily(const Problem& problem);
// The best of all; none where it would take too long to find out.
std::optional<std::vector<size_t>> choose_best(const Problem& problem);
// The cheapest of every combination there is: what the search is checked against, on graphs of a few operations.
Placed try_all(const Problem& problem);
// The best of all choices that differ along one axis only, axis by axis, as long as it helps.
std::vector<size_t> improve_by_axis(const Problem& problem, std::vector<size_t> chosen);

}  // namespace cairn::planner
