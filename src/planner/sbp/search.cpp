// The best choice of SBP signatures for a whole graph, by variable elimination (dynamic programming over a graph of small tree width, as in
// OneFlow's and Alpa's placement searches).
//
// Every operation o has a variable x_o, its choice of signature. The cost to minimise is a sum of terms over one or two variables:
//   sum over o of inner(x_o) + work(x_o)                      sums inside the operation, and computation
//   + sum over edges (o, p) of boxing(x_o, x_p)               redistributing o's output to what p wants, and its gradient back
//   + sum over parameters of gradient(x_p)                    reducing the gradient to how the parameter is kept
// Each term is a table. Eliminating a variable joins all tables that mention it and replaces them by their minimum over the variable, a
// table over its neighbours; the variable with the smallest joined table goes first. Walking back gives the minimising choices.
//
// A value with several readers gets a variable of its own, the placement that all readers start from. The result is then costed as it runs,
// where each reader's placement is made from the value as it was produced. The two costs differ if readers want different placements: the
// cheaper of this and the greedy choice is taken (infer.cpp).
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "planner/sbp/choices.h"

namespace cairn::planner {
namespace {

constexpr double kMaxEntries = 4e6;       // of a joined table
constexpr double kMaxEntriesOfAll = 3e6;  // of all tables at the start

// A cost for each combination of some variables, the last one running fastest.
struct Table {
  std::vector<int> variables;
  std::vector<double> costs;
};

// Minimises a sum of tables by variable elimination.
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

  // Joins all tables that mention the variable into one over its neighbours and itself, and puts their minimum over the variable in their
  // place. Returns the joined table, which decides the variable later.
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
    // The stride in `table` of each variable of `into`.
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

// The placements in which a tensor is wanted by its readers, each once.
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

// How many boxing costs there are to look up between producers and readers, before anything is eliminated.
double entries_of_all(const PlacementProblem& problem) {
  double entries = 0;
  for (size_t o = 0; o < problem.graph.ops.size(); ++o)
    for (const int reader : problem.graph.readers(problem.graph.ops[o].output))
      entries += static_cast<double>(problem.choices[o].size() * problem.choices[static_cast<size_t>(reader)].size());
  return entries;
}

// The tables of a problem. Variable o is the choice of operation o; variables of values with several readers follow.
class CostTables {
 public:
  explicit CostTables(const PlacementProblem& problem) : problem_(problem), graph_(problem.graph) {
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      elimination_.add(problem.choices[o].size());
      producer_[graph_.ops[o].output] = static_cast<int>(o);
    }
    add_operations();
    for (size_t t = 0; t < graph_.tensors.size(); ++t) add_tensor(static_cast<int>(t));
  }

  std::optional<std::vector<size_t>> solve() {
    std::optional<std::vector<size_t>> best = elimination_.solve();
    if (best) best->resize(graph_.ops.size());
    return best;
  }

 private:
  const std::vector<Choice>& choices(int op) const { return problem_.choices[static_cast<size_t>(op)]; }

  // Which input of an operation the tensor is.
  size_t input_of(int op, int tensor) const {
    const std::vector<int>& inputs = graph_.ops[static_cast<size_t>(op)].inputs;
    return static_cast<size_t>(std::find(inputs.begin(), inputs.end(), tensor) - inputs.begin());
  }

  // Where computation has no price it only breaks ties: its weight is far below one byte.
  void add_operations() {
    double most = 1;
    for (const auto& of : problem_.choices)
      for (const Choice& choice : of) most = std::max(most, choice.work);
    const double weight = problem_.computing_counts() ? 1 : 1e-3 / (most * static_cast<double>(graph_.ops.size() + 1));
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      Table table{{static_cast<int>(o)}, {}};
      for (const Choice& choice : problem_.choices[o]) table.costs.push_back(choice.inner + weight * choice.work);
      elimination_.add(std::move(table));
    }
  }

  template <typename Cost>
  void add_pair(int a, int b, Cost cost) {
    Table table{{a, b}, {}};
    for (size_t i = 0; i < elimination_.values(a); ++i)
      for (size_t j = 0; j < elimination_.values(b); ++j) table.costs.push_back(cost(i, j));
    elimination_.add(std::move(table));
  }

  // The costs of bringing a tensor from where it is produced or kept to its readers.
  void add_tensor(int tensor) {
    const std::vector<int> readers = graph_.readers(tensor);
    if (readers.empty()) return;
    if (readers.size() > 1) return add_shared_tensor(tensor, readers);
    const int reader = readers[0];
    const size_t input = input_of(reader, tensor);
    if (const auto producer = producer_.find(tensor); producer != producer_.end()) {
      const std::vector<Choice>&from = choices(producer->second), &to = choices(reader);
      add_pair(producer->second, reader,
               [&](size_t i, size_t j) { return problem_.transfer_cost(tensor, from[i].output, to[j].inputs[input]); });
      return;
    }
    Table table{{reader}, {}};
    for (const Choice& choice : choices(reader)) table.costs.push_back(source_cost(tensor, choice.inputs[input]));
    elimination_.add(std::move(table));
  }

  // Several readers: a variable for the placement that they all start from.
  void add_shared_tensor(int tensor, const std::vector<int>& readers) {
    const std::vector<NdSbp> placements = sbp_seen(problem_, tensor, readers);
    const int variable = elimination_.add(placements.size());
    if (const auto producer = producer_.find(tensor); producer != producer_.end()) {
      const std::vector<Choice>& from = choices(producer->second);
      add_pair(producer->second, variable,
               [&](size_t i, size_t j) { return problem_.transfer_cost(tensor, from[i].output, placements[j]); });
    } else {
      Table table{{variable}, {}};
      for (const NdSbp& to : placements) table.costs.push_back(source_cost(tensor, to));
      elimination_.add(std::move(table));
    }
    for (const int reader : readers) {
      const std::vector<Choice>& to = choices(reader);
      const size_t input = input_of(reader, tensor);
      add_pair(variable, reader, [&](size_t i, size_t j) { return problem_.transfer_cost(tensor, placements[i], to[j].inputs[input]); });
    }
  }

  // Of an input or parameter: moving it from its decided placement, or, where it lies as its reader wants it, reducing its gradient.
  double source_cost(int tensor, const NdSbp& to) const {
    const std::optional<NdSbp>& decided = problem_.decided[static_cast<size_t>(tensor)];
    return decided ? problem_.transfer_cost(tensor, *decided, to) : problem_.gradient_cost(tensor, to);
  }

  const PlacementProblem& problem_;
  const OpGraph& graph_;
  Elimination elimination_;
  std::map<int, int> producer_;  // by tensor
};

}  // namespace

std::optional<std::vector<size_t>> choose_best(const PlacementProblem& problem) {
  if (entries_of_all(problem) > kMaxEntriesOfAll) return std::nullopt;
  return CostTables(problem).solve();
}

}  // namespace cairn::planner
