// The best choice of signatures for a whole graph: operations are eliminated one by one, each leaving a table that says what the best
// choice for it costs for each choice of its neighbours. Exact for the sum of prices between pairs; a value with several readers is
// brought to one form that all of them start from. (What is chosen is then priced as it runs: each reader's form is made from the value as
// it was made. The two differ where readers want several forms; the cheaper of this and the greedy choice is taken.)

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "planner/sbp/choices.h"

namespace cairn::planner {
namespace {

constexpr double kMaxEntries = 4e6;       // of a table before its operation is eliminated
constexpr double kMaxEntriesOfAll = 3e6;  // of the tables to begin with

// A cost for each combination of some variables, the last one running fastest.
struct Table {
  std::vector<int> variables;
  std::vector<double> costs;
};

// Variables: operations first, then parameters that nobody has decided and several operations read, then values with several readers.
class Elimination {
 public:
  int add(size_t values) {
    sizes_.push_back(values);
    return static_cast<int>(sizes_.size()) - 1;
  }
  size_t values(int variable) const { return sizes_[static_cast<size_t>(variable)]; }
  void add(Table table) { tables_.push_back(std::move(table)); }

  // The best value of every variable; none where tables grow too large.
  std::optional<std::vector<size_t>> solve() {
    std::set<int> left;
    for (size_t v = 0; v < sizes_.size(); ++v) left.insert(static_cast<int>(v));
    std::vector<std::pair<int, Table>> order;  // what was eliminated, with the table that decides it
    while (!left.empty()) {
      int next = -1;
      double least = kInfeasible;
      for (const int v : left)
        if (const double entries = entries_with(v); entries < least) least = entries, next = v;
      if (least > kMaxEntries) return std::nullopt;
      order.emplace_back(next, eliminate(next));
      left.erase(next);
    }
    std::vector<size_t> best(sizes_.size(), 0);
    for (auto step = order.rbegin(); step != order.rend(); ++step) {
      const auto& [variable, table] = *step;
      size_t base = 0;
      for (const int other : table.variables)
        if (other != variable) base = base * values(other) + best[static_cast<size_t>(other)];
      base *= values(variable);  // which runs fastest
      const auto begin = table.costs.begin() + static_cast<std::ptrdiff_t>(base);
      const auto found = std::min_element(begin, begin + static_cast<std::ptrdiff_t>(values(variable)));
      if (*found == kInfeasible) return std::nullopt;
      best[static_cast<size_t>(variable)] = static_cast<size_t>(found - begin);
    }
    return best;
  }

 private:
  std::set<int> neighbours(int variable) const {
    std::set<int> all;
    for (const Table& table : tables_)
      if (std::find(table.variables.begin(), table.variables.end(), variable) != table.variables.end())
        all.insert(table.variables.begin(), table.variables.end());
    all.erase(variable);
    return all;
  }

  double entries_with(int variable) const {
    double entries = static_cast<double>(values(variable));
    for (const int other : neighbours(variable)) entries *= static_cast<double>(values(other));
    return entries;
  }

  // The sum of all tables that speak of the variable, over its neighbours and itself; leaves its minimum in their place.
  Table eliminate(int variable) {
    Table joined;
    for (const int other : neighbours(variable)) joined.variables.push_back(other);
    joined.variables.push_back(variable);
    size_t entries = 1;
    for (const int v : joined.variables) entries *= values(v);
    joined.costs.assign(entries, 0.0);
    for (const Table& table : tables_)
      if (std::find(table.variables.begin(), table.variables.end(), variable) != table.variables.end()) add_up(joined, table);
    std::erase_if(tables_, [&](const Table& table) {
      return std::find(table.variables.begin(), table.variables.end(), variable) != table.variables.end();
    });
    Table least{.variables = joined.variables, .costs = {}};
    least.variables.pop_back();
    const size_t run = values(variable);
    for (size_t i = 0; i < entries; i += run)
      least.costs.push_back(*std::min_element(joined.costs.begin() + static_cast<std::ptrdiff_t>(i),
                                              joined.costs.begin() + static_cast<std::ptrdiff_t>(i + run)));
    if (!least.variables.empty()) tables_.push_back(std::move(least));
    return joined;
  }

  void add_up(Table& into, const Table& table) const {
    // How far one step of each of `into`'s variables goes in `table`.
    std::vector<size_t> strides(into.variables.size(), 0), at(into.variables.size(), 0);
    size_t stride = 1;
    for (size_t i = table.variables.size(); i-- > 0;) {
      const auto place = std::find(into.variables.begin(), into.variables.end(), table.variables[i]) - into.variables.begin();
      strides[static_cast<size_t>(place)] = stride;
      stride *= values(table.variables[i]);
    }
    size_t from = 0;
    for (double& cost : into.costs) {
      cost += table.costs[from];
      for (size_t i = at.size(); i-- > 0;) {
        from += strides[i];
        if (++at[i] < values(into.variables[i])) break;
        from -= strides[i] * values(into.variables[i]);
        at[i] = 0;
      }
    }
  }

  std::vector<size_t> sizes_;
  std::vector<Table> tables_;
};

// Forms that a tensor may be wanted in, or made in, each once.
std::vector<NdSbp> sbp_seen(const PlacementProblem& problem, int tensor, const std::vector<int>& readers) {
  std::set<NdSbp> seen;
  for (const int reader : readers) {
    const GraphOp& op = problem.graph.ops[static_cast<size_t>(reader)];
    for (const Choice& choice : problem.choices[static_cast<size_t>(reader)])
      for (size_t i = 0; i < op.inputs.size(); ++i)
        if (op.inputs[i] == tensor) seen.insert(choice.inputs[i]);
  }
  return {seen.begin(), seen.end()};
}

// Prices between makers and readers: what there is to look up before anything is eliminated.
double entries_of_all(const PlacementProblem& problem) {
  double entries = 0;
  for (size_t o = 0; o < problem.graph.ops.size(); ++o)
    for (const int reader : problem.graph.readers(problem.graph.ops[o].output))
      entries += static_cast<double>(problem.choices[o].size() * problem.choices[static_cast<size_t>(reader)].size());
  return entries;
}

}  // namespace

std::optional<std::vector<size_t>> choose_best(const PlacementProblem& problem) {
  const OpGraph& graph = problem.graph;
  if (entries_of_all(problem) > kMaxEntriesOfAll) return std::nullopt;
  Elimination elimination;
  std::map<int, int> maker;  // by tensor
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    elimination.add(problem.choices[o].size());
    maker[graph.ops[o].output] = static_cast<int>(o);
  }
  // Work breaks ties where it has no price: far below any byte.
  double most = 1;
  for (const auto& choices : problem.choices)
    for (const Choice& choice : choices) most = std::max(most, choice.work);
  const double weight = problem.computing_counts() ? 1 : 1e-3 / (most * static_cast<double>(graph.ops.size() + 1));
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    Table table{{static_cast<int>(o)}, {}};
    for (const Choice& choice : problem.choices[o]) table.costs.push_back(choice.inner + weight * choice.work);
    elimination.add(std::move(table));
  }
  const auto pair = [&](int a, size_t count_a, int b, size_t count_b, const auto& cost) {
    Table table{{a, b}, {}};
    for (size_t i = 0; i < count_a; ++i)
      for (size_t j = 0; j < count_b; ++j) table.costs.push_back(cost(i, j));
    elimination.add(std::move(table));
  };
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const int tensor = static_cast<int>(t);
    const std::vector<int> readers = graph.readers(tensor);
    const auto made = maker.find(tensor);
    if (readers.empty()) continue;
    const auto wanted = [&](int reader, const auto& each) {
      const GraphOp& op = graph.ops[static_cast<size_t>(reader)];
      const auto input = static_cast<size_t>(std::find(op.inputs.begin(), op.inputs.end(), tensor) - op.inputs.begin());
      return each(problem.choices[static_cast<size_t>(reader)], input);
    };
    const auto lone = [&](int reader, const auto& cost) {  // a cost of the reader's choice alone
      wanted(reader, [&](const std::vector<Choice>& choices, size_t input) {
        Table table{{reader}, {}};
        for (const Choice& choice : choices) table.costs.push_back(cost(choice.inputs[input]));
        elimination.add(std::move(table));
      });
    };
    const bool free = made == maker.end() && !problem.decided[t];
    if (free && readers.size() == 1) {
      lone(readers[0], [&](const NdSbp& to) { return problem.gradient_cost(tensor, to); });
      continue;
    }
    if (made != maker.end() && readers.size() == 1) {
      const auto& makes = problem.choices[static_cast<size_t>(made->second)];
      wanted(readers[0], [&](const std::vector<Choice>& choices, size_t input) {
        pair(made->second, makes.size(), readers[0], choices.size(),
             [&](size_t i, size_t j) { return problem.transfer_cost(tensor, makes[i].output, choices[j].inputs[input]); });
      });
      continue;
    }
    if (made == maker.end() && !free && readers.size() == 1) {
      lone(readers[0], [&](const NdSbp& to) { return problem.transfer_cost(tensor, *problem.decided[t], to); });
      continue;
    }
    // Several readers: a variable for the form that they start from.
    const std::vector<NdSbp> nd_sbp = sbp_seen(problem, tensor, readers);
    const int variable = elimination.add(nd_sbp.size());
    if (made != maker.end()) {
      const auto& makes = problem.choices[static_cast<size_t>(made->second)];
      pair(made->second, makes.size(), variable, nd_sbp.size(),
           [&](size_t i, size_t j) { return problem.transfer_cost(tensor, makes[i].output, nd_sbp[j]); });
    } else {
      Table table{{variable}, {}};
      for (const NdSbp& sbp : nd_sbp)
        table.costs.push_back(free ? problem.gradient_cost(tensor, sbp) : problem.transfer_cost(tensor, *problem.decided[t], sbp));
      elimination.add(std::move(table));
    }
    for (const int reader : readers)
      wanted(reader, [&](const std::vector<Choice>& choices, size_t input) {
        pair(variable, nd_sbp.size(), reader, choices.size(),
             [&](size_t i, size_t j) { return problem.transfer_cost(tensor, nd_sbp[i], choices[j].inputs[input]); });
      });
  }
  std::optional<std::vector<size_t>> best = elimination.solve();
  if (best) best->resize(graph.ops.size());
  return best;
}

}  // namespace cairn::planner
