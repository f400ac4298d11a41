#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "parallel/schedule.h"
#include "parallel/schedule/generators.h"

namespace cairn::parallel {
namespace {

enum class Route { looped, v_shaped };

// One line for each schedule.
struct ScheduleKind {
  const char* name;
  Route route;
  int stages_min, stages_default, stages_max;  // per rank
  RankActions (*actions)(const PipelineSize&);
};

constexpr int kStagesPerRankMax = 1024;

constexpr std::array<ScheduleKind, 7> kSchedules = {{
    {"gpipe", Route::looped, 1, 1, 1, gpipe_actions},
    {"1f1b", Route::looped, 1, 1, 1, one_forward_one_backward_actions},
    {"interleaved", Route::looped, 2, 2, kStagesPerRankMax, interleaved_actions},
    {"zb_h1", Route::looped, 1, 1, 1, zero_bubble_h1_actions},
    {"zbv", Route::v_shaped, 2, 2, 2, zero_bubble_v_actions},
    {"dualpipev", Route::v_shaped, 2, 2, 2, dual_pipe_v_actions},
    {"flow", Route::looped, 1, 1, kStagesPerRankMax, flow_actions},
}};

const ScheduleKind& find_schedule(const std::string& name) {
  for (const ScheduleKind& kind : kSchedules)
    if (name == kind.name) return kind;
  base::fail_unknown("pipeline schedule", name, schedule_names());
}

int checked_stages_per_rank(const ScheduleKind& kind, int wanted) {
  if (wanted == 0) return kind.stages_default;
  if (wanted >= kind.stages_min && wanted <= kind.stages_max) return wanted;
  const std::string takes = kind.stages_min == kind.stages_max ? fmt::format("it has {}", kind.stages_min)
                                                               : fmt::format("it takes {} to {}", kind.stages_min, kind.stages_max);
  base::fail_input(
      "schedule {} with {} stages per rank: {} (1: gpipe, 1f1b, zb_h1, flow; 2: interleaved, zbv, dualpipev, flow; more: interleaved, "
      "flow)",
      kind.name, wanted, takes);
}

PipelineSize checked_size(const ScheduleKind& kind, const ScheduleRequest& request) {
  if (request.ranks < 1 || request.ranks > kPipelineRanksMax)
    base::fail_input("schedule {} over {} ranks: must be 1 to {}", kind.name, request.ranks, kPipelineRanksMax);
  if (request.micro_batches < 1) base::fail_input("schedule {} of {} micro-batches: must be at least 1", kind.name, request.micro_batches);
  const PipelineSize size{request.ranks, checked_stages_per_rank(kind, request.stages_per_rank), request.micro_batches};
  const int64_t actions = int64_t{3} * size.ranks * size.stages_per_rank * size.micro_batches;
  if (actions > kActionsMax)
    base::fail_input("schedule {}: {} ranks of {} stages and {} micro-batches make up to {} actions, at most {} are taken: use fewer",
                     kind.name, size.ranks, size.stages_per_rank, size.micro_batches, actions, kActionsMax);
  return size;
}

std::vector<int> make_route(Route route, const PipelineSize& size) {
  std::vector<int> rank_of_stage;
  for (int chunk = 0; chunk < size.stages_per_rank; ++chunk)
    for (int i = 0; i < size.ranks; ++i) rank_of_stage.push_back(route == Route::v_shaped && chunk % 2 == 1 ? size.ranks - 1 - i : i);
  return rank_of_stage;
}

}  // namespace

Schedule make_schedule(const ScheduleRequest& request) {
  const ScheduleKind& kind = find_schedule(request.name);
  const PipelineSize size = checked_size(kind, request);
  return {
      .name = kind.name, .micro_batches = size.micro_batches, .rank_of_stage = make_route(kind.route, size), .actions = kind.actions(size)};
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kSchedules) names.emplace_back(kind.name);
  return names;
}

}  // namespace cairn::parallel
