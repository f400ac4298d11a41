#include "planner/step_plan/sequence_pool.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace cairn::planner {

int SequencePool::nodes_of(std::span<const int> of) const {
  if (ranks_per_node <= 0) return 1;
  std::set<int> nodes;
  for (const int rank : of) nodes.insert(rank / ranks_per_node);
  return static_cast<int>(nodes.size());
}

std::string in_words(const SequencePool& pool) {
  const SequenceCosts& costs = pool.costs;
  std::string text =
      fmt::format("a pass of s tokens takes {:.3g} s^2 + {:.3g} s + {:.3g} seconds", costs.quadratic_s, costs.linear_s, costs.pass_s);
  for (const auto& [degree, bandwidth] : costs.bandwidth)
    text += fmt::format("{} {} ranks {:.3g} GB/s", degree == costs.bandwidth.begin()->first ? ";" : ",", degree, bandwidth / 1e9);
  if (pool.ranks_per_node > 0) text += fmt::format("; {} ranks a node", pool.ranks_per_node);
  return text;
}

void check(const SequencePool& pool, std::span<const parallel::PlannedSequence> sequences) {
  CAIRN_CHECK(pool.ranks >= 1, "a pool of {} ranks", pool.ranks);
  if (pool.tokens_per_rank < 1)
    base::fail_input("context.tokens_per_rank = {}: must be at least 1. Set it to the tokens that one rank can hold in a pass.",
                     pool.tokens_per_rank);
  int64_t longest = 0;
  for (const parallel::PlannedSequence& one : sequences) {
    CAIRN_CHECK(one.length >= 1, "a sequence of {} tokens", one.length);
    longest = std::max(longest, one.length);
  }
  check_longest(pool, longest);
}

void check_longest(const SequencePool& pool, int64_t longest) {
  if (longest <= pool.capacity()) return;
  base::fail_input(
      "context.tokens_per_rank = {}: a sequence of {} tokens is longer than the {} that {} ranks hold together. Set "
      "context.tokens_per_rank to at least {}, or train on at least {} ranks.",
      pool.tokens_per_rank, longest, pool.capacity(), pool.ranks, (longest + pool.ranks - 1) / pool.ranks, pool.ranks_for(longest));
}

std::vector<parallel::PlannedSequence> longest_first(std::span<const parallel::PlannedSequence> sequences) {
  std::vector<parallel::PlannedSequence> sorted(sequences.begin(), sequences.end());
  std::sort(sorted.begin(), sorted.end(), [](const parallel::PlannedSequence& a, const parallel::PlannedSequence& b) {
    return a.length != b.length ? a.length > b.length : a.place < b.place;
  });
  return sorted;
}

double unit_s(const SequenceCosts& costs, std::span<const parallel::PlannedSequence> sequences, int degree) {
  double sum = costs.pass_s;
  for (const parallel::PlannedSequence& one : sequences) sum += costs.sequence_s(one.length, degree);
  return sum;
}

}  // namespace cairn::planner
