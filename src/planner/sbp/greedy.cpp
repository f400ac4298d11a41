// Greedy choices in running order: each operation takes the signature whose inputs are cheapest to bring, given what was chosen before. And
// a local search that improves choices along one axis at a time, for graphs and meshes that are too large for the exact search.

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "planner/sbp/choices.h"

namespace cairn::planner {

std::vector<size_t> choose_greedily(const PlacementProblem& problem) {
  const OpGraph& graph = problem.graph;
  std::vector<size_t> chosen;
  std::vector<std::vector<NdSbp>> there(graph.tensors.size());  // placements that a tensor has by now, the first as it is produced or kept
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (problem.decided[t]) there[t] = {*problem.decided[t]};
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const GraphOp& op = graph.ops[o];
    struct Score {
      double cost = kInfeasible;
      size_t changed = 0;
      double work = 0;
    };
    Score best;
    size_t place = 0;
    for (size_t c = 0; c < problem.choices[o].size(); ++c) {
      const Choice& choice = problem.choices[o][c];
      Score score{.cost = choice.inner + (problem.computing_counts() ? choice.work : 0), .work = choice.work};
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const auto& nd_sbp = there[static_cast<size_t>(op.inputs[i])];
        if (nd_sbp.empty()) {
          score.cost += problem.gradient_cost(op.inputs[i], choice.inputs[i]);
          continue;
        }
        score.changed += nd_sbp.front() != choice.inputs[i];
        const bool have = std::find(nd_sbp.begin(), nd_sbp.end(), choice.inputs[i]) != nd_sbp.end();
        const bool twice = std::find(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(i), op.inputs[i]) !=
                           op.inputs.begin() + static_cast<std::ptrdiff_t>(i);
        if (!have && !twice) score.cost += problem.transfer_cost(op.inputs[i], nd_sbp.front(), choice.inputs[i]);
      }
      if (std::tie(score.cost, score.changed, score.work) < std::tie(best.cost, best.changed, best.work)) best = score, place = c;
    }
    CAIRN_CHECK(best.cost < kInfeasible, "{}: no signature is feasible", op.name);
    chosen.push_back(place);
    const Choice& choice = problem.choices[o][place];
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (auto& nd_sbp = there[static_cast<size_t>(op.inputs[i])];
          std::find(nd_sbp.begin(), nd_sbp.end(), choice.inputs[i]) == nd_sbp.end())
        nd_sbp.push_back(choice.inputs[i]);
    there[static_cast<size_t>(op.output)] = {choice.output};
  }
  return chosen;
}

std::vector<size_t> improve_by_axis(const PlacementProblem& problem, std::vector<size_t> chosen) {
  constexpr int kMaxSweeps = 4;
  double best = apply_choices(problem, chosen).cost;
  bool better = true;
  for (int sweep = 0; sweep < kMaxSweeps && better; ++sweep) {
    better = false;
    for (size_t axis = 0; axis < problem.boxing.mesh().axes.size(); ++axis) {
      PlacementProblem along{problem.graph, problem.boxing, problem.options, {}, problem.decided};
      std::vector<std::vector<size_t>> places(chosen.size());
      for (size_t o = 0; o < chosen.size(); ++o) {
        const Choice& now = problem.choices[o][chosen[o]];
        const auto same = [&](const NdSbp& a, const NdSbp& b) {
          for (size_t i = 0; i < a.size(); ++i)
            if (i != axis && a[i] != b[i]) return false;
          return true;
        };
        std::vector<Choice>& left = along.choices.emplace_back();
        for (size_t c = 0; c < problem.choices[o].size(); ++c) {
          const Choice& one = problem.choices[o][c];
          bool matches = same(one.output, now.output);
          for (size_t i = 0; i < one.inputs.size() && matches; ++i) matches = same(one.inputs[i], now.inputs[i]);
          if (!matches) continue;
          left.push_back(one);
          places[o].push_back(c);
        }
      }
      const std::optional<std::vector<size_t>> found = choose_best(along);
      if (!found) continue;
      std::vector<size_t> next;
      for (size_t o = 0; o < chosen.size(); ++o) next.push_back(places[o][(*found)[o]]);
      if (const double cost = apply_choices(problem, next).cost; cost < best * (1 - 1e-12)) best = cost, chosen = next, better = true;
    }
  }
  return chosen;
}

}  // namespace cairn::planner
