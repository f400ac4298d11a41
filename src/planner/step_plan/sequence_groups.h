// One micro-batch of FlexSP: groups of ranks, and which sequences each of them has.
//
// The ranks are divided into groups of d_1, d_2, ... ranks (a layout), and each sequence goes to one group. With tau(s, d) the seconds of
// a sequence on d ranks and C the tokens that a rank holds, minimise the slowest group:
//
//   min max_p  c + sum_{k in p} tau(s_k, d_p)      such that  sum_{k in p} s_k <= C d_p,   sum_p d_p = N
//
// FlexSP (arXiv:2412.01523) gives this to a solver for integer programs. Here every layout is tried (beam search where there are too many):
// the longest sequence first to the group that is done soonest, then moves and swaps out of the slowest group. Few sequences are then
// searched exactly, by branch and bound.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "planner/step_plan/sequence_pool.h"

namespace cairn::planner {

struct GroupRules {
  std::vector<int> degrees = {};                                 // that a group may have; empty: default_degrees()
  int64_t exact_nodes = 200'000;                                 // steps of the exact search; 0: none
  int64_t exact_sequences = 16;                                  // more are not searched exactly, unless nothing was found otherwise
  int64_t layouts_max = 4096;                                    // more are searched by beam
  const std::vector<std::vector<int>>* known_layouts = nullptr;  // placeable_layouts() of the same pool and rules; null: it is called
};

// Any number of ranks inside a node, and whole nodes. In a large pool (kAnyDegreeRanks) powers of two inside a node.
std::vector<int> default_degrees(const SequencePool& pool);
inline constexpr int kAnyDegreeRanks = 24;

// The ranks of groups of these degrees (the largest first): neighbours, and no group on more nodes than it must be; none if groups that a
// node could hold do not all fit into nodes.
std::optional<std::vector<std::vector<int>>> place_groups(std::span<const int> degrees, const SequencePool& pool);

// All ways to write `ranks` as a sum of these degrees, each from the largest part to the smallest; at most `most`, or none if there are
// more.
std::vector<std::vector<int>> layouts(int ranks, std::span<const int> degrees, int64_t most);

// Those of them that place_groups() can place.
std::vector<std::vector<int>> placeable_layouts(const SequencePool& pool, const GroupRules& rules);

struct SequenceGroups {
  std::vector<int> degrees = {};                                       // from the largest to the smallest
  std::vector<std::vector<int>> ranks = {};                            // of each group
  std::vector<std::vector<parallel::PlannedSequence>> sequences = {};  // of each group; a group may have none
  double seconds = 0;                                                  // of the slowest group
};

// The best grouping found; none where no way was found to fit the sequences.
std::optional<SequenceGroups> group_sequences(std::span<const parallel::PlannedSequence> sequences, const SequencePool& pool,
                                              const GroupRules& rules = {});

// No grouping takes less: the longest sequence alone on its best degree, and all work spread evenly with every sequence on the degree
// where it costs least.
double group_bound_s(std::span<const parallel::PlannedSequence> sequences, const SequencePool& pool, std::span<const int> degrees);

}  // namespace cairn::planner
