// What both step planners are given: the sequences of a batch, the ranks, and what a rank can hold.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/step_plan/step_plan.h"
#include "planner/step_plan/sequence_costs.h"

namespace cairn::planner {

struct SequencePool {
  int ranks = 1;
  int64_t tokens_per_rank = 0;  // of one pass: what its activations leave room for (context.tokens_per_rank)
  int ranks_per_node = 0;       // neighbours in rank order with faster links among them; 0: all ranks
  SequenceCosts costs = {};

  int64_t capacity() const { return tokens_per_rank * ranks; }
  // The fewest ranks that hold a sequence.
  int64_t ranks_for(int64_t length) const { return (length + tokens_per_rank - 1) / tokens_per_rank; }
  // How many nodes these ranks lie on.
  int nodes_of(std::span<const int> ranks) const;
};

// "2.1e-09 s^2 + 3.4e-06 s + 2.0e-05 s a pass; 2 ranks 1.2 GB/s, 4 ranks 0.9 GB/s; 4 ranks a node", s: tokens of a sequence.
std::string in_words(const SequencePool& pool);

// Refuses a pool that can hold nothing, and a sequence that all its ranks together cannot hold: with its length, the capacity and what
// to set.
void check(const SequencePool& pool, std::span<const parallel::PlannedSequence> sequences);
// Likewise of the longest sequence alone.
void check_longest(const SequencePool& pool, int64_t longest);

// The longest first; equal lengths by place.
std::vector<parallel::PlannedSequence> longest_first(std::span<const parallel::PlannedSequence> sequences);

// Seconds of a unit of these sequences on `degree` ranks.
double unit_s(const SequenceCosts& costs, std::span<const parallel::PlannedSequence> sequences, int degree);

}  // namespace cairn::planner
