// The list of pipeline schedules. A new one: a generator in a file of its own, a line in kSchedules, a test in schedules_test.cpp.
//
// How they look with equal times for forward (f), input gradient (i) and weight gradient (w), both gradients at once taking two units (b);
// a digit is the micro-batch, a dot an idle unit (the bubble). The time goes to the right.
//
// gpipe (Huang et al. 2019, arXiv:1811.06965): all forwards, then all backwards. A rank keeps the activations of all m micro-batches.
//   rank 0   f0 f1 f2 f3 .  .  .  .  .  .  b3 b3 b2 b2 b1 b1 b0 b0
//   rank 1   .  f0 f1 f2 f3 .  .  .  b3 b3 b2 b2 b1 b1 b0 b0 .  .
//   rank 2   .  .  f0 f1 f2 f3 b3 b3 b2 b2 b1 b1 b0 b0 .  .  .  .
//
// 1f1b (PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503): as long, but rank r of p keeps p-r micro-batches at most.
//   rank 0   f0 f1 f2 .  .  .  .  b0 b0 f3 b1 b1 .  b2 b2 .  b3 b3
//   rank 1   .  f0 f1 .  .  b0 b0 f2 b1 b1 f3 b2 b2 .  b3 b3 .  .
//   rank 2   .  .  f0 b0 b0 f1 b1 b1 f2 b2 b2 f3 b3 b3 .  .  .  .
//
// zb_h1 (Qi et al. 2023, arXiv:2401.10241): 1f1b whose weight gradients fill the bubble, since no other rank waits for them.
//   rank 0   f0 f1 f2 .  .  i0 w0 f3 i1 w1 i2 w2 i3 w3
//   rank 1   .  f0 f1 .  i0 f2 i1 w0 f3 i2 w1 i3 w2 w3
//   rank 2   .  .  f0 i0 f1 i1 f2 i2 w0 f3 i3 w1 w2 w3
//
// With several stages per rank; capitals are the rank's second stage, units are those of the smaller stages.
//
// interleaved (Megatron-LM, Narayanan et al. 2021, arXiv:2104.04473): v stages per rank, a v-th of the bubble, v times the messages.
//   rank 0   f0 f1 F0 F1 f2 .  B0 B0 f3 B1 B1 F2 b0 b0 F3 b1 b1 .  B2 B2 .  B3 B3 b2 b2 b3 b3
//   rank 1   .  f0 f1 F0 B0 B0 F1 B1 B1 f2 b0 b0 f3 b1 b1 F2 B2 B2 F3 B3 B3 b2 b2 b3 b3 .  .
//
// zbv (the same paper): stages down the ranks and back up; no bubble inside, with the memory of 1f1b.
//   rank 0   f0 f1 f2 F0 I0 W0 F1 I1 W1 f3 i0 w0 F2 I2 W2 i1 w1 F3 I3 W3 i2 w2 i3 w3 .
//   rank 1   .  f0 F0 f1 F1 I0 W0 f2 i0 w0 F2 I1 W1 f3 i1 w1 F3 I2 W2 i2 I3 i3 w2 W3 w3
//
// dualpipev (DeepSeek-V3's DualPipe, arXiv:2412.19437, cut in half): forwards of one leg of the V beside backwards of the other, whose
// messages they hide.
//   rank 0   f0 f1 f2 F0 I0 W0 F1 f3 B1 B1 F2 b0 b0 B2 B2 F3 .  b1 b1 B3 B3 i2 w2 i3 w3
//   rank 1   .  f0 F0 f1 F1 f2 B0 B0 F2 b0 b0 f3 B1 B1 F3 b1 b1 B2 B2 b2 b2 I3 i3 W3 w3
//
// flow: no list at all. Stages are actors and what bounds them are their registers; with one stage per rank the result is 1f1b.
#include <algorithm>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "parallel/schedule.h"
#include "parallel/schedule/generators.h"

namespace cairn::parallel {
namespace {

constexpr int kStagesPerRankMax = 1024;

constexpr ScheduleKind kSchedules[] = {
    {"gpipe", "All forwards, then all backwards.", StageRoute::looped, 1, 1, 1, MicroBatchRule::any, false, gpipe_actions},
    {"1f1b", "A forward and a backward in turn: the bubble of gpipe with fewer activations.", StageRoute::looped, 1, 1, 1,
     MicroBatchRule::any, false, one_forward_one_backward_actions},
    {"interleaved", "1f1b over several small stages per rank: a smaller bubble, more messages.", StageRoute::looped, 2, 2,
     kStagesPerRankMax, MicroBatchRule::multiple_of_ranks, false, interleaved_actions},
    {"zb_h1", "1f1b whose weight gradients fill the bubble.", StageRoute::looped, 1, 1, 1, MicroBatchRule::any, true,
     zero_bubble_h1_actions},
    {"zbv", "Two stages per rank in the shape of a V: no bubble inside, with the memory of 1f1b.", StageRoute::v_shaped, 2, 2, 2,
     MicroBatchRule::any, true, zero_bubble_v_actions},
    {"dualpipev", "The V with forwards beside backwards that hide each other's messages.", StageRoute::v_shaped, 2, 2, 2,
     MicroBatchRule::at_least_two_per_rank, true, dual_pipe_v_actions},
    {"flow", "The order that bounded registers alone produce.", StageRoute::looped, 1, 1, kStagesPerRankMax, MicroBatchRule::any, false,
     flow_actions},
};

const ScheduleKind& find_schedule(const std::string& name) {
  for (const ScheduleKind& kind : kSchedules)
    if (name == kind.name) return kind;
  base::fail_unknown("pipeline schedule", name, schedule_names());
}

template <typename Predicate>
std::string names_where(Predicate holds) {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kSchedules)
    if (holds(kind)) names.emplace_back(kind.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool takes_stages(const ScheduleKind& kind, int stages_per_rank) {
  return stages_per_rank >= kind.min_stages_per_rank && stages_per_rank <= kind.max_stages_per_rank;
}

int checked_stages_per_rank(const ScheduleKind& kind, int wanted) {
  if (wanted == 0) return kind.default_stages_per_rank;
  if (takes_stages(kind, wanted)) return wanted;
  const std::string allowed = kind.min_stages_per_rank == kind.max_stages_per_rank
                                  ? fmt::format("it has {}", kind.min_stages_per_rank)
                                  : fmt::format("it takes {} to {}", kind.min_stages_per_rank, kind.max_stages_per_rank);
  base::fail_input("schedule {} with {} stages per rank: {} (1: {}; 2: {}; more: {})", kind.name, wanted, allowed,
                   names_where([](const ScheduleKind& one) { return takes_stages(one, 1); }),
                   names_where([](const ScheduleKind& one) { return takes_stages(one, 2); }),
                   names_where([](const ScheduleKind& one) { return takes_stages(one, 3); }));
}

void check_micro_batches(const ScheduleKind& kind, const PipelineSize& size) {
  const auto others = [] { return names_where([](const ScheduleKind& one) { return one.micro_batches == MicroBatchRule::any; }); };
  if (kind.micro_batches == MicroBatchRule::multiple_of_ranks && size.micro_batches % size.ranks != 0) {
    const int below = size.micro_batches / size.ranks * size.ranks;
    const std::string nearest = below == 0 ? fmt::format("{}", size.ranks) : fmt::format("{} or {}", below, below + size.ranks);
    base::fail_input(
        "schedule {}: {} micro-batches over {} ranks: must be a multiple of the ranks. Use {} micro-batches, or a schedule that takes any "
        "number: {}",
        kind.name, size.micro_batches, size.ranks, nearest, others());
  }
  if (kind.micro_batches == MicroBatchRule::at_least_two_per_rank && size.micro_batches < 2 * size.ranks)
    base::fail_input(
        "schedule {}: {} micro-batches over {} ranks: must be at least {}, two for each rank. Use more, or a schedule that takes any "
        "number: {}",
        kind.name, size.micro_batches, size.ranks, 2 * size.ranks, others());
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
  check_micro_batches(kind, size);
  return size;
}

std::vector<int> make_route(StageRoute route, const PipelineSize& size) {
  std::vector<int> rank_of_stage;
  for (int chunk = 0; chunk < size.stages_per_rank; ++chunk)
    for (int i = 0; i < size.ranks; ++i) rank_of_stage.push_back(route == StageRoute::v_shaped && chunk % 2 == 1 ? size.ranks - 1 - i : i);
  return rank_of_stage;
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() { return kSchedules; }

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kSchedules) names.emplace_back(kind.name);
  return names;
}

Schedule make_schedule(const ScheduleRequest& request) {
  const ScheduleKind& kind = find_schedule(request.name);
  const PipelineSize size = checked_size(kind, request);
  return {
      .name = kind.name, .micro_batches = size.micro_batches, .rank_of_stage = make_route(kind.route, size), .actions = kind.actions(size)};
}

}  // namespace cairn::parallel
