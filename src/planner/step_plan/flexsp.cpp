#include "planner/step_plan/flexsp.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::planner {
namespace {

using parallel::PlannedSequence;

// Runs with at most `most` tokens each, filled in order, and at least `least` of them. The longest sequence must fit.
std::vector<size_t> runs_within(std::span<const PlannedSequence> sorted, int64_t most, size_t least = 1) {
  std::vector<size_t> ends;
  int64_t tokens = 0;
  for (size_t k = 0; k < sorted.size(); ++k) {
    const bool one_each = sorted.size() - k + ends.size() + 1 <= least;  // what is left makes no more runs than are missing
    if (k > 0 && (one_each || tokens + sorted[k].length > most)) ends.push_back(k), tokens = 0;
    tokens += sorted[k].length;
  }
  if (!sorted.empty()) ends.push_back(sorted.size());
  return ends;
}

void append(parallel::StepPlan& plan, const SequenceGroups& groups, const SequencePool& pool) {
  for (size_t p = 0; p < groups.degrees.size(); ++p)
    if (!groups.sequences[p].empty())
      plan.units.push_back({.ranks = groups.ranks[p],
                            .sequences = groups.sequences[p],
                            .micro_batch = plan.micro_batches,
                            .predicted_s = unit_s(pool.costs, groups.sequences[p], groups.degrees[p])});
  ++plan.micro_batches;
}

// The step in these runs; none where one of them does not fit.
std::optional<FlexspPlan> plan_runs(int64_t step, std::span<const PlannedSequence> sorted, std::span<const size_t> ends,
                                    const SequencePool& pool, const GroupRules& rules) {
  FlexspPlan all{.plan = {.step = step, .ranks = pool.ranks, .micro_batches = 0, .units = {}}};
  size_t begin = 0;
  for (const size_t end : ends) {
    const std::span<const PlannedSequence> run = sorted.subspan(begin, end - begin);
    const std::optional<SequenceGroups> groups = group_sequences(run, pool, rules);
    if (!groups) return std::nullopt;
    append(all.plan, *groups, pool);
    all.bound_s += group_bound_s(run, pool, rules.degrees);
    begin = end;
  }
  return all;
}

}  // namespace

std::vector<size_t> even_runs(std::span<const PlannedSequence> sorted, int64_t runs) {
  CAIRN_CHECK(runs >= 1, "{} runs", runs);
  if (sorted.empty()) return {};
  int64_t least = sorted.front().length, most = 0;  // bounds of the largest sum
  for (const PlannedSequence& one : sorted) most += one.length;
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (static_cast<int64_t>(runs_within(sorted, middle).size()) <= runs)
      most = middle;
    else
      least = middle + 1;
  }
  return runs_within(sorted, least, static_cast<size_t>(runs));
}

FlexspPlan plan_flexsp(int64_t step, std::span<const PlannedSequence> sequences, const SequencePool& pool, const FlexspRules& rules) {
  check(pool, sequences);
  GroupRules groups = rules.groups;
  if (groups.degrees.empty()) groups.degrees = default_degrees(pool);
  std::vector<char> sums(static_cast<size_t>(pool.ranks) + 1, 0);  // numbers of ranks that groups of these degrees can add up to
  sums[0] = 1;
  for (size_t n = 1; n < sums.size(); ++n)
    for (const int d : groups.degrees)
      if (d >= 1 && static_cast<size_t>(d) <= n && sums[n - static_cast<size_t>(d)]) sums[n] = 1;
  if (!sums.back())
    base::fail_input(
        "context.plan = flexsp: groups of {} ranks do not add up to the {} ranks of the pool. Train on a multiple of {} ranks.",
        fmt::join(groups.degrees, ", "), pool.ranks, groups.degrees.front());
  const std::vector<std::vector<int>> layouts = placeable_layouts(pool, groups);
  groups.known_layouts = &layouts;
  const std::vector<PlannedSequence> sorted = longest_first(sequences);
  if (sorted.empty()) return {.plan = {.step = step, .ranks = pool.ranks, .micro_batches = 0, .units = {}}};
  if (const int64_t largest = pool.ranks_for(sorted.front().length); largest > groups.degrees.back())
    base::fail_input(
        "context.plan = flexsp: a sequence of {} tokens needs {} ranks, and groups have at most {}. Set "
        "context.tokens_per_rank to at least {}.",
        sorted.front().length, largest, groups.degrees.back(), (sorted.front().length + groups.degrees.back() - 1) / groups.degrees.back());
  int64_t tokens = 0;
  for (const PlannedSequence& one : sorted) tokens += one.length;
  const int64_t least = (tokens + pool.capacity() - 1) / pool.capacity(), count = static_cast<int64_t>(sorted.size());
  std::optional<FlexspPlan> best;
  double best_s = 0;
  int64_t tried = 0;
  // With a run for each sequence all fit, since the whole pool holds each of them.
  for (int64_t m = std::min(least, count); m <= count && (tried < rules.micro_batch_options || !best); ++m) {
    const std::vector<size_t> ends = even_runs(sorted, m);
    std::optional<FlexspPlan> plan = plan_runs(step, sorted, ends, pool, groups);
    if (plan || tried > 0) ++tried;
    if (!plan) continue;
    const double seconds = parallel::predicted_step_s(plan->plan);
    if (!best || seconds < best_s) best = std::move(plan), best_s = seconds;
  }
  if (!best)
    base::fail_input(
        "context.plan = flexsp: no groups of {} ranks hold the sequences of step {} with context.tokens_per_rank = {}. Raise "
        "context.tokens_per_rank.",
        fmt::join(groups.degrees, ", "), step, pool.tokens_per_rank);
  return std::move(*best);
}

}  // namespace cairn::planner
