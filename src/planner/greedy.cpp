// Choices one after the other, in running order; and choices made better one at a time.

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "planner/choices.h"

namespace cairn::planner {

std::vector<size_t> choose_greedily(const Problem& problem) {
  const OpGraph& graph = problem.graph;
  std::vector<size_t> chosen;
  std::vector<std::vector<Forms>> there(graph.tensors.size());  // forms that a tensor has been brought to, the first as it is made or kept
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (problem.decided[t]) there[t] = {*problem.decided[t]};
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const GraphOp& op = graph.ops[o];
    struct Score {
      double cost = kNever;
      size_t changed = 0;
      double work = 0;
    };
    Score best;
    size_t place = 0;
    for (size_t c = 0; c < problem.choices[o].size(); ++c) {
      const Choice& choice = problem.choices[o][c];
      Score score{.cost = choice.inner + (problem.computing_counts() ? choice.work : 0), .work = choice.work};
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const auto& forms = there[static_cast<size_t>(op.inputs[i])];
        if (forms.empty()) {
          score.cost += problem.keep(op.inputs[i], choice.inputs[i]);
          continue;
        }
        score.changed += forms.front() != choice.inputs[i];
        const bool have = std::find(forms.begin(), forms.end(), choice.inputs[i]) != forms.end();
        const bool twice = std::find(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(i), op.inputs[i]) !=
                           op.inputs.begin() + static_cast<std::ptrdiff_t>(i);
        if (!have && !twice) score.cost += problem.move(op.inputs[i], forms.front(), choice.inputs[i]);
      }
      if (std::tie(score.cost, score.changed, score.work) < std::tie(best.cost, best.changed, best.work)) best = score, place = c;
    }
    CAIRN_CHECK(best.cost < kNever, "{}: no signature can be had", op.name);
    chosen.push_back(place);
    const Choice& choice = problem.choices[o][place];
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (auto& forms = there[static_cast<size_t>(op.inputs[i])]; std::find(forms.begin(), forms.end(), choice.inputs[i]) == forms.end())
        forms.push_back(choice.inputs[i]);
    there[static_cast<size_t>(op.output)] = {choice.output};
  }
  return chosen;
}

std::vector<size_t> improve(const Problem& problem, std::vector<size_t> chosen) {
  double best = placed_by(problem, chosen).cost;
  for (bool better = true; better;) {
    better = false;
    for (size_t o = 0; o < chosen.size(); ++o) {
      const size_t before = chosen[o];
      size_t keep = before;
      for (size_t c = 0; c < problem.choices[o].size(); ++c) {
        if (c == before) continue;
        chosen[o] = c;
        const auto possible = [&](size_t reader) {
          const GraphOp& op = problem.graph.ops[reader];
          for (size_t i = 0; i < op.inputs.size(); ++i) {
            std::optional<Forms> from = problem.decided[static_cast<size_t>(op.inputs[i])];
            for (size_t maker = 0; maker < reader && !from; ++maker)
              if (problem.graph.ops[maker].output == op.inputs[i]) from = problem.choices[maker][chosen[maker]].output;
            const Forms& to = problem.choices[reader][chosen[reader]].inputs[i];
            if (from ? makes_terms(*from, to) : problem.keep(op.inputs[i], to) == kNever) return false;
          }
          return true;
        };
        bool allowed = possible(o);
        for (const int reader : problem.graph.readers(problem.graph.ops[o].output))
          allowed = allowed && possible(static_cast<size_t>(reader));
        if (!allowed) continue;
        if (const double cost = placed_by(problem, chosen).cost; cost < best * (1 - 1e-12)) best = cost, keep = c, better = true;
      }
      chosen[o] = keep;
    }
  }
  return chosen;
}

}  // namespace cairn::planner
