#include "planner/experts/place_experts.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/random.h"
#include "planner/experts/balanced_assignment.h"

namespace cairn::planner {
namespace {

using Matrix = std::vector<int64_t>;           // square, row-major
using Labels = std::vector<std::vector<int>>;  // [layer][expert]

// Experts of all layers, to be spread evenly over bins (ranks or nodes), with the cost of a hop between two bins.
struct ChainProblem {
  int layers, experts, bins;
  std::vector<Matrix> counts;            // layers - 1
  std::function<int64_t(int, int)> hop;  // of two bins
  bool uniform;                          // hop is 0 or one other value: bins may be relabelled

  int64_t count(int layer, int from, int to) const {
    return counts[static_cast<size_t>(layer)][static_cast<size_t>(from) * static_cast<size_t>(experts) + static_cast<size_t>(to)];
  }
};

class ChainSolver {
 public:
  explicit ChainSolver(const ChainProblem& problem) : p_(problem) {}

  int64_t cost(const Labels& x) const {
    int64_t sum = 0;
    for (int layer = 0; layer + 1 < p_.layers; ++layer)
      for (int e = 0; e < p_.experts; ++e)
        for (int f = 0; f < p_.experts; ++f)
          if (const int64_t count = p_.count(layer, e, f)) sum += count * p_.hop(label(x, layer, e), label(x, layer + 1, f));
    return sum;
  }

  // Layer steps and cut steps until neither gains.
  Labels descend(Labels x) const {
    for (int64_t best = cost(x);;) {
      for (int layer = 0; layer < p_.layers; ++layer) layer_step(x, layer, /*backward=*/true, /*forward=*/true);
      for (int layer = p_.layers - 2; layer >= 0; --layer) layer_step(x, layer, true, true);
      if (p_.uniform)
        for (int layer = 0; layer + 1 < p_.layers; ++layer) cut_step(x, layer);
      const int64_t now = cost(x);
      if (now >= best) return x;
      best = now;
    }
  }

  Labels best_of_starts(int restarts, uint64_t seed) const {
    Labels best = descend(contiguous_placement(p_.layers, p_.experts, p_.bins).rank);
    int64_t lowest = cost(best);
    const auto consider = [&](const Labels& start) {
      Labels x = descend(start);
      const int64_t now = cost(x);
      if (now < lowest) lowest = now, best = std::move(x);
    };
    consider(greedy_chain());
    for (int i = 0; i < restarts && lowest > 0; ++i)
      consider(random_placement(p_.layers, p_.experts, p_.bins, base::Random(seed).for_index(static_cast<uint64_t>(i)).bits64(0)).rank);
    return best;
  }

 private:
  static int label(const Labels& x, int layer, int expert) { return x[static_cast<size_t>(layer)][static_cast<size_t>(expert)]; }

  Labels greedy_chain() const {
    Labels x = contiguous_placement(p_.layers, p_.experts, p_.bins).rank;
    for (int layer = 1; layer < p_.layers; ++layer) layer_step(x, layer, true, false);
    return x;
  }

  void layer_step(Labels& x, int layer, bool backward, bool forward) const {
    const auto bins = static_cast<size_t>(p_.bins);
    Matrix gain(static_cast<size_t>(p_.experts) * bins, 0), mass(bins);
    for (int e = 0; e < p_.experts; ++e) {
      std::fill(mass.begin(), mass.end(), 0);  // by the bin of the neighbour; hop is symmetric
      for (int other = 0; other < p_.experts; ++other) {
        if (backward && layer > 0) mass[static_cast<size_t>(label(x, layer - 1, other))] += p_.count(layer - 1, other, e);
        if (forward && layer + 1 < p_.layers) mass[static_cast<size_t>(label(x, layer + 1, other))] += p_.count(layer, e, other);
      }
      for (int bin = 0; bin < p_.bins; ++bin)
        for (int from = 0; from < p_.bins; ++from)
          gain[static_cast<size_t>(e) * bins + static_cast<size_t>(bin)] -= mass[static_cast<size_t>(from)] * p_.hop(from, bin);
    }
    x[static_cast<size_t>(layer)] = assign_balanced(gain, p_.experts, p_.bins);
  }

  // Relabels the bins of all layers behind `layer`.
  void cut_step(Labels& x, int layer) const {
    const auto bins = static_cast<size_t>(p_.bins);
    Matrix together(bins * bins, 0);  // tokens by (bin behind the cut, bin before it)
    for (int e = 0; e < p_.experts; ++e)
      for (int f = 0; f < p_.experts; ++f)
        together[static_cast<size_t>(label(x, layer + 1, f)) * bins + static_cast<size_t>(label(x, layer, e))] += p_.count(layer, e, f);
    const std::vector<int> renamed = assign_balanced(together, p_.bins, p_.bins);
    int64_t gained = 0;
    for (size_t bin = 0; bin < bins; ++bin) gained += together[bin * bins + static_cast<size_t>(renamed[bin])] - together[bin * bins + bin];
    if (gained <= 0) return;
    for (int behind = layer + 1; behind < p_.layers; ++behind)
      for (int& bin : x[static_cast<size_t>(behind)]) bin = renamed[static_cast<size_t>(bin)];
  }

  const ChainProblem& p_;
};

int64_t one_if_different(int a, int b) { return a == b ? 0 : 1; }

// The experts of one node, spread over its ranks.
void place_inside_node(ExpertPlacement& placement, const Labels& node, int which, const ChainProblem& all,
                       const PlacementOptions& options) {
  std::vector<std::vector<int>> members(static_cast<size_t>(all.layers));
  for (int layer = 0; layer < all.layers; ++layer)
    for (int e = 0; e < all.experts; ++e)
      if (node[static_cast<size_t>(layer)][static_cast<size_t>(e)] == which) members[static_cast<size_t>(layer)].push_back(e);
  const auto n = members.front().size();
  ChainProblem inside{all.layers, static_cast<int>(n), options.node_ranks, {}, one_if_different, true};
  for (int layer = 0; layer + 1 < all.layers; ++layer) {
    Matrix& counts = inside.counts.emplace_back(n * n);
    for (size_t a = 0; a < n; ++a)
      for (size_t b = 0; b < n; ++b)
        counts[a * n + b] = all.count(layer, members[static_cast<size_t>(layer)][a], members[static_cast<size_t>(layer) + 1][b]);
  }
  const Labels local = ChainSolver(inside).best_of_starts(options.restarts, options.seed + static_cast<uint64_t>(which) + 1);
  for (size_t layer = 0; layer < members.size(); ++layer)
    for (size_t i = 0; i < n; ++i)
      placement.rank[layer][static_cast<size_t>(members[layer][i])] = which * options.node_ranks + local[layer][i];
}

void check_options(const Affinity& affinity, const PlacementOptions& options) {
  if (options.ranks < 1 || affinity.experts % options.ranks != 0)
    base::fail_input("mesh.ep = {}: {} experts do not divide over the ranks. Choose a divisor of {}.", options.ranks, affinity.experts,
                     affinity.experts);
  if (options.node_ranks > 0 && options.ranks % options.node_ranks != 0)
    base::fail_input("expert.node_ranks = {}: {} ranks are no whole nodes. Choose a divisor of {}.", options.node_ranks, options.ranks,
                     options.ranks);
}

}  // namespace

mesh::Ragged ExpertPlacement::table(int layer) const {
  mesh::Ragged table;
  for (const int owner : rank[static_cast<size_t>(layer)]) table.owners.push_back({owner});
  return table;
}

double Hops::kept_fraction() const {
  const int64_t all = none + inside + between;
  return all > 0 ? static_cast<double>(none) / static_cast<double>(all) : 1;
}

ExpertPlacement contiguous_placement(int layers, int experts, int ranks) {
  ExpertPlacement placement{ranks, Labels(static_cast<size_t>(layers), std::vector<int>(static_cast<size_t>(experts)))};
  for (std::vector<int>& layer : placement.rank)
    for (size_t e = 0; e < layer.size(); ++e) layer[e] = static_cast<int>(e) / (experts / ranks);
  return placement;
}

ExpertPlacement random_placement(int layers, int experts, int ranks, uint64_t seed) {
  ExpertPlacement placement = contiguous_placement(layers, experts, ranks);
  const base::Random random = base::Random(seed).for_purpose("placement of experts");
  for (size_t layer = 0; layer < placement.rank.size(); ++layer) {
    std::vector<int>& labels = placement.rank[layer];
    for (size_t i = labels.size(); i > 1; --i) std::swap(labels[i - 1], labels[random.for_index(layer).below(i, i)]);
  }
  return placement;
}

ExpertPlacement place_experts(const Affinity& affinity, const PlacementOptions& options) {
  check_options(affinity, options);
  const int node_ranks = options.node_ranks > 0 ? options.node_ranks : options.ranks, nodes = options.ranks / node_ranks;
  ChainProblem whole{affinity.layers, affinity.experts, options.ranks, affinity.counts, one_if_different, true};
  ExpertPlacement placement = contiguous_placement(affinity.layers, affinity.experts, options.ranks);
  if (nodes == 1) {
    placement.rank = ChainSolver(whole).best_of_starts(options.restarts, options.seed);
    return placement;
  }
  ChainProblem by_node = whole;
  by_node.bins = nodes;
  const Labels node = ChainSolver(by_node).best_of_starts(options.restarts, options.seed);
  PlacementOptions inside = options;
  inside.node_ranks = node_ranks;
  ExpertPlacement staged = placement;
  for (int which = 0; which < nodes; ++which) place_inside_node(staged, node, which, whole, inside);
  whole.uniform = false;
  whole.hop = [&](int a, int b) { return a == b ? 0 : a / node_ranks == b / node_ranks ? options.cost.inside : options.cost.between; };
  const ChainSolver solver(whole);
  const Labels first = solver.descend(staged.rank), second = solver.descend(placement.rank);
  placement.rank = solver.cost(first) <= solver.cost(second) ? first : second;
  return placement;
}

Hops count_hops(const ExpertPlacement& placement, const Affinity& affinity, int node_ranks) {
  Hops hops;
  const int per_node = node_ranks > 0 ? node_ranks : placement.ranks;
  for (int layer = 0; layer + 1 < affinity.layers; ++layer)
    for (int e = 0; e < affinity.experts; ++e)
      for (int f = 0; f < affinity.experts; ++f) {
        const int a = placement.rank[static_cast<size_t>(layer)][static_cast<size_t>(e)];
        const int b = placement.rank[static_cast<size_t>(layer) + 1][static_cast<size_t>(f)];
        (a == b ? hops.none : a / per_node == b / per_node ? hops.inside : hops.between) += affinity.at(layer, e, f);
      }
  return hops;
}

}  // namespace cairn::planner
