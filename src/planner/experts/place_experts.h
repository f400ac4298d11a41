#pragma once
#include <cstdint>
#include <vector>

#include "mesh/ragged.h"
#include "planner/experts/routing_trace.h"

namespace cairn::planner {

// ExFlow's placement of experts (Yao et al. 2024, arXiv:2401.08383). A token that is decoded moves to the rank of its expert and stays
// there for the next layer. Experts that follow each other therefore go to one rank, or at least to one node:
//
//   minimise sum over layers j, experts e, f of A_j[e, f] h(x[e, j], x[f, j + 1])
//     A_j[e, f]   tokens that go from e in layer j to f in layer j + 1         x[e, j]   the rank of an expert
//     h(p, q)     cost of a hop: 0 on the same rank, 1 inside a node, 2 between nodes
//   with exactly C = E / P experts of each layer on each rank
//
// The paper solves an integer program over tokens. Counts give the same optimum, and coordinate descent takes milliseconds:
//   layer step   all other layers fixed, the best x[., j] is an assignment of E experts to P ranks with capacity C: solved exactly
//   cut step     the labels of the ranks in all layers behind a cut are permuted: the best permutation is an assignment of P to P
// repeated until neither gains. Starts: contiguous, greedy chain (each layer assigned given the one before), and random ones. Over nodes:
// first experts to nodes (hops between nodes), then in each node to its ranks, then layer steps under the whole cost.

struct HopCosts {
  int64_t inside = 1;   // to another rank of the node
  int64_t between = 2;  // to another node
};

struct PlacementOptions {
  int ranks = 1;
  int node_ranks = 0;  // consecutive ranks of a node; 0: all ranks are one node
  HopCosts cost = {};
  int restarts = 16;  // random starts
  uint64_t seed = 0;
};

// rank[layer][expert]; every rank has equally many experts of each layer.
struct ExpertPlacement {
  int ranks = 1;
  std::vector<std::vector<int>> rank;

  int layers() const { return static_cast<int>(rank.size()); }
  int experts() const { return rank.empty() ? 0 : static_cast<int>(rank.front().size()); }
  mesh::Ragged table(int layer) const;  // along dim 0 of the stacked weights
  bool operator==(const ExpertPlacement&) const = default;
};

// What the transitions of a trace cost.
struct Hops {
  int64_t none = 0, inside = 0, between = 0;
  int64_t cost(const HopCosts& costs) const { return inside * costs.inside + between * costs.between; }
  double kept_fraction() const;  // of transitions that stay on their rank
};

ExpertPlacement contiguous_placement(int layers, int experts, int ranks);
ExpertPlacement random_placement(int layers, int experts, int ranks, uint64_t seed);
// Refuses experts that do not divide over the ranks, and ranks that do not divide over nodes.
ExpertPlacement place_experts(const Affinity& affinity, const PlacementOptions& options);
Hops count_hops(const ExpertPlacement& placement, const Affinity& affinity, int node_ranks);

}  // namespace cairn::planner
