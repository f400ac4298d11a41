// Where the actions beside forward and backward go. For one stage of GPipe with three micro-batches:
//
//   forwards and backwards   F0    F1    F2       B2    B1    B0
//   recompute                F0    F1    F2    R2 B2 R1 B1 R0 B0        R2 runs while the gradient of micro-batch 2 is on its way
//   offload                  F0 O0 F1 O1 F2    R2 B2 R1 B1 R0 B0        micro-batch 2 is needed at once and stays
//   gather, reduce           G F0  F1    F2       B2    B1    B0 D
#include "parallel/schedule/extra_actions.h"

#include <algorithm>
#include <map>
#include <set>

namespace cairn::parallel {
namespace {

bool has_kind(const Schedule& schedule, ActionKind kind) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [&](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Action& one) { return one.kind == kind; });
  });
}

std::vector<Action> with_recompute(const std::vector<Action>& list, int micro_batches_recomputed) {
  std::vector<Action> all;
  for (const Action& one : list) {
    if (makes_input_gradient(one.kind) && one.micro_batch < micro_batches_recomputed)
      all.push_back({ActionKind::recompute, one.stage, one.micro_batch});
    all.push_back(one);
  }
  return all;
}

// After each forward, unless the same micro-batch is next.
std::vector<Action> with_offload(const std::vector<Action>& list, int micro_batches_recomputed) {
  std::vector<Action> all;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& one = list[i];
    all.push_back(one);
    const bool next = i + 1 < list.size() && list[i + 1].stage == one.stage && list[i + 1].micro_batch == one.micro_batch;
    if (one.kind == ActionKind::forward && one.micro_batch < micro_batches_recomputed && !next)
      all.push_back({ActionKind::offload, one.stage, one.micro_batch});
  }
  return all;
}

std::vector<Action> with_gather(const std::vector<Action>& list) {
  std::vector<Action> all;
  std::set<int> gathered;
  for (size_t i = 0; i < list.size(); ++i) {
    const size_t ahead = std::min(i + 1, list.size() - 1);
    for (const size_t at : {i, ahead})
      if (list[at].kind == ActionKind::forward && gathered.insert(list[at].stage).second)
        all.push_back({ActionKind::gather, list[at].stage});
    all.push_back(list[i]);
  }
  return all;
}

std::vector<Action> with_reduce(const std::vector<Action>& list) {
  std::map<int, size_t> last;  // by stage
  for (size_t i = 0; i < list.size(); ++i)
    if (computes(list[i].kind)) last[list[i].stage] = i;
  std::vector<Action> all;
  for (size_t i = 0; i < list.size(); ++i) {
    all.push_back(list[i]);
    if (const auto found = last.find(list[i].stage); found != last.end() && found->second == i)
      all.push_back({ActionKind::reduce, list[i].stage});
  }
  return all;
}

}  // namespace

Schedule add_actions(Schedule schedule, const ExtraActions& extra) {
  const int recomputed = schedule.micro_batches - (extra.except_last ? 1 : 0);
  const bool recompute = extra.recompute && !has_kind(schedule, ActionKind::recompute);
  const bool offload = extra.offload && !has_kind(schedule, ActionKind::offload);
  const bool gather = extra.gather && !has_kind(schedule, ActionKind::gather),
             reduce = extra.reduce && !has_kind(schedule, ActionKind::reduce);
  for (std::vector<Action>& list : schedule.actions) {
    if (offload) list = with_offload(list, recomputed);
    if (recompute) list = with_recompute(list, recomputed);
    if (gather) list = with_gather(list);
    if (reduce) list = with_reduce(list);
  }
  return schedule;
}

}  // namespace cairn::parallel
