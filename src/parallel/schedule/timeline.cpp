#include "parallel/schedule/timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "parallel/schedule/check.h"

namespace cairn::parallel {
namespace {

void check_costs(const std::vector<double>& seconds, const char* what, const Schedule& schedule) {
  if (static_cast<int>(seconds.size()) != schedule.stages())
    base::fail_input("schedule {}: {} costs of {}, it has {} stages", schedule.name, seconds.size(), what, schedule.stages());
  for (size_t stage = 0; stage < seconds.size(); ++stage)
    if (!std::isfinite(seconds[stage]) || seconds[stage] < 0)
      base::fail_input("{} of stage {} costs {} s: must be a number, 0 or more", what, stage, seconds[stage]);
}

double or_zero(const std::vector<double>& seconds, int stage) { return seconds.empty() ? 0 : seconds[stage]; }

double seconds_of(const Action& action, const StageCosts& costs) {
  switch (action.kind) {
    case ActionKind::forward:
      return costs.forward_s[action.stage];
    case ActionKind::backward_input:
      return costs.backward_input_s[action.stage];
    case ActionKind::backward_weight:
      return costs.backward_weight_s[action.stage];
    case ActionKind::backward:
      return costs.backward_input_s[action.stage] + costs.backward_weight_s[action.stage];
    case ActionKind::recompute:
      return costs.recompute_s.empty() ? costs.forward_s[action.stage] : costs.recompute_s[action.stage];
    case ActionKind::gather:
      return or_zero(costs.gather_s, action.stage);
    case ActionKind::reduce:
      return or_zero(costs.reduce_s, action.stage);
    case ActionKind::offload:
      return or_zero(costs.offload_s, action.stage);
  }
  CAIRN_CHECK(false, "action of kind {}", static_cast<int>(action.kind));
}

RankTimelineStats rank_stats(const std::vector<TimedAction>& list, double step_s) {
  RankTimelineStats figures;
  std::map<int, int> live;  // stages by micro-batch
  int activations = 0;
  double first_s = std::numeric_limits<double>::infinity(), last_s = 0;
  for (const TimedAction& timed : list) {
    if (!computes(timed.action.kind)) continue;
    figures.busy_s += timed.end_s - timed.begin_s;
    first_s = std::min(first_s, timed.begin_s);
    last_s = timed.end_s;
    const int micro_batch = timed.action.micro_batch;
    if (timed.action.kind == ActionKind::forward) {
      ++live[micro_batch];
      ++activations;
    } else if (timed.action.kind == ActionKind::backward || timed.action.kind == ActionKind::backward_weight) {
      if (--live[micro_batch] <= 0) live.erase(micro_batch);
      --activations;
    }
    figures.live_micro_batches = std::max(figures.live_micro_batches, static_cast<int>(live.size()));
    figures.live_activations = std::max(figures.live_activations, activations);
  }
  figures.bubble = step_s > 0 ? (step_s - figures.busy_s) / step_s : 0;
  if (last_s > first_s) figures.waiting_s = last_s - first_s - figures.busy_s;
  return figures;
}

}  // namespace

StageCosts even_costs(const Schedule& schedule, const RankCosts& costs) {
  std::vector<int> stages_on(schedule.ranks());
  for (const int rank : schedule.rank_of_stage) {
    CAIRN_CHECK(rank >= 0 && rank < schedule.ranks(), "a stage on rank {} of {}", rank, schedule.ranks());
    ++stages_on[rank];
  }
  StageCosts each;
  each.transfer_s = costs.transfer_s;
  for (const int rank : schedule.rank_of_stage) {
    each.forward_s.push_back(costs.forward_s / stages_on[rank]);
    each.backward_input_s.push_back((costs.backward_input_s + costs.recompute_in_backward_s) / stages_on[rank]);
    each.backward_weight_s.push_back(costs.backward_weight_s / stages_on[rank]);
  }
  return each;
}

Timeline timeline(const Schedule& schedule, const StageCosts& costs) {
  check(schedule);
  check_costs(costs.forward_s, "the forward", schedule);
  check_costs(costs.backward_input_s, "the input gradient", schedule);
  check_costs(costs.backward_weight_s, "the weight gradient", schedule);
  if (!costs.recompute_s.empty()) check_costs(costs.recompute_s, "the recomputation", schedule);
  if (!costs.gather_s.empty()) check_costs(costs.gather_s, "the gather", schedule);
  if (!costs.reduce_s.empty()) check_costs(costs.reduce_s, "the reduction", schedule);
  if (!costs.offload_s.empty()) check_costs(costs.offload_s, "the offload", schedule);
  if (!std::isfinite(costs.transfer_s) || costs.transfer_s < 0)
    base::fail_input("a transfer takes {} s: must be a number, 0 or more", costs.transfer_s);

  Timeline planned{schedule.name, schedule.micro_batches, schedule.rank_of_stage, {}};
  planned.ranks.resize(schedule.ranks());
  const size_t count = static_cast<size_t>(schedule.stages()) * schedule.micro_batches;
  std::vector<double> output_s(count), gradient_s(count);                 // when they are made, by stage and micro-batch
  std::vector<double> offloaded_s(count), gathered_s(schedule.stages());  // when the copy or the gather is done
  std::vector<double> free_s(schedule.ranks());
  in_running_order(schedule, [&](int rank, const Action& action) {
    double begin_s = free_s[rank];
    if (action.kind == ActionKind::forward) begin_s = std::max(begin_s, gathered_s[action.stage]);
    for (const StageResult& result : needs(action, schedule.stages())) {
      const std::vector<double>& made_s = result.kind == StageResult::Kind::output ? output_s : gradient_s;
      const bool sent = schedule.rank_of_stage[result.stage] != rank;
      const size_t at = static_cast<size_t>(result.stage) * schedule.micro_batches + result.micro_batch;
      begin_s = std::max(begin_s, made_s[at] + (sent ? costs.transfer_s : 0));
    }
    const size_t at = static_cast<size_t>(action.stage) * schedule.micro_batches + action.micro_batch;
    if (action.kind == ActionKind::recompute || makes_input_gradient(action.kind)) begin_s = std::max(begin_s, offloaded_s[at]);
    const double end_s = begin_s + seconds_of(action, costs);
    if (action.kind == ActionKind::forward) output_s[at] = end_s;
    if (makes_input_gradient(action.kind)) gradient_s[at] = end_s;
    if (action.kind == ActionKind::gather) gathered_s[action.stage] = end_s;
    if (action.kind == ActionKind::offload) offloaded_s[at] = end_s;
    planned.ranks[rank].push_back({action, begin_s, end_s});
    if (computes(action.kind)) free_s[rank] = end_s;
  });
  return planned;
}

TimelineStats timeline_stats(const Timeline& timeline) {
  double begin_s = std::numeric_limits<double>::infinity(), end_s = -begin_s;
  for (const std::vector<TimedAction>& list : timeline.ranks)
    for (const TimedAction& timed : list) {
      begin_s = std::min(begin_s, timed.begin_s);
      end_s = std::max(end_s, timed.end_s);
    }
  TimelineStats all;
  if (end_s > begin_s) all.step_s = end_s - begin_s;
  double busy_s = 0, busiest_s = 0;
  for (const std::vector<TimedAction>& list : timeline.ranks) {
    all.ranks.push_back(rank_stats(list, all.step_s));
    busy_s += all.ranks.back().busy_s;
    busiest_s = std::max(busiest_s, all.ranks.back().busy_s);
  }
  const double rank_seconds = all.step_s * static_cast<double>(timeline.ranks.size());
  if (rank_seconds > 0) all.bubble = (rank_seconds - busy_s) / rank_seconds;
  if (busiest_s > 0) all.step_to_ideal = all.step_s / busiest_s;
  return all;
}

}  // namespace cairn::parallel
