#include <map>
#include <optional>

#include "base/check.h"
#include "planner/sbp/choices.h"

namespace cairn::planner {
namespace {

bool is_feasible(const PlacementProblem& problem, const std::vector<size_t>& chosen) {
  std::map<int, NdSbp> lie;
  for (size_t t = 0; t < problem.decided.size(); ++t)
    if (problem.decided[t]) lie[static_cast<int>(t)] = *problem.decided[t];
  for (size_t o = 0; o < chosen.size(); ++o) {
    const Choice& choice = problem.choices[o][chosen[o]];
    for (size_t i = 0; i < choice.inputs.size(); ++i) {
      const auto [at, fresh] = lie.try_emplace(problem.graph.ops[o].inputs[i], choice.inputs[i]);
      if (fresh ? problem.gradient_cost(at->first, choice.inputs[i]) == kInfeasible : makes_partial(at->second, choice.inputs[i]))
        return false;
    }
    lie[problem.graph.ops[o].output] = choice.output;
  }
  return true;
}

}  // namespace

PlacedGraph brute_force(const PlacementProblem& problem) {
  std::vector<size_t> chosen(problem.choices.size(), 0);
  std::optional<PlacedGraph> best;
  for (size_t o = 0; o < chosen.size();) {
    if (is_feasible(problem, chosen))
      if (PlacedGraph placed = apply_choices(problem, chosen); !best || placed.cost < best->cost) best = std::move(placed);
    o = 0;
    while (o < chosen.size() && ++chosen[o] == problem.choices[o].size()) chosen[o++] = 0;
  }
  CAIRN_CHECK(best, "no combination is feasible");
  return *best;
}

}  // namespace cairn::planner
