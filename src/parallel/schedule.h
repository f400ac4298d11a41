// The order in which the ranks of a pipeline work, as data.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::parallel {

// What a rank does next. Four kinds compute gradients or what they need:
//   forward
//   backward                         both gradients at once
//   backward_input, backward_weight  the two apart (zero-bubble schedules): the stage before waits for the first, nobody for the second
//   recompute                        activations that forward did not keep, before the gradient arrives; without it backward recomputes
// Three move data, beside what the rank computes:
//   gather   starts the all-gather of a stage's sharded weights (ZeRO 3); without it the step begins with all of them
//   reduce   starts the reductions of a stage's gradients; without it each starts as soon as the gradient is complete
//   offload  copies what a micro-batch keeps for recomputation to host memory, until its recompute or backward
// Gather and reduce are of a stage and all its micro-batches; their micro_batch is 0.
enum class ActionKind { forward, backward, backward_input, backward_weight, recompute, gather, reduce, offload };
inline constexpr int kActionKinds = 8;

// Whether the rank computes meanwhile nothing else.
constexpr bool computes(ActionKind kind) { return kind <= ActionKind::recompute; }
// Whether it is of a stage, not of one micro-batch.
constexpr bool of_whole_stage(ActionKind kind) { return kind == ActionKind::gather || kind == ActionKind::reduce; }
// Whether it makes the gradient that the stage before waits for.
constexpr bool makes_input_gradient(ActionKind kind) { return kind == ActionKind::backward || kind == ActionKind::backward_input; }

// One stage's work on one micro-batch.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;

  bool operator==(const Action&) const = default;
};

// Per rank, an ordered list of actions. The runtime executes it (pipeline/pipeline.h), `check` proves it free of deadlock
// (schedule/check.h), `timeline` costs it (schedule/timeline.h). Sends and receives are not listed, they follow: a stage's output goes to
// the rank of the next stage, the gradient of its input to the rank of the stage before.
struct Schedule {
  std::string name;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;            // which rank along pp runs each (virtual) stage
  std::vector<std::vector<Action>> actions;  // by rank along pp, in order

  int ranks() const { return static_cast<int>(actions.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool operator==(const Schedule&) const = default;
};

// Sizes beyond these are mistakes: nobody waits for a step of so many actions.
inline constexpr int kPipelineRanksMax = 4096;
inline constexpr int kActionsMax = 1 << 22;

// The size that a schedule is made for.
struct PipelineSize {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
};

// By rank along pp, in order.
using RankActions = std::vector<std::vector<Action>>;

// Which rank runs which stage, with p ranks.
//   looped    rank r runs the stages r, p+r, 2p+r, ...
//   v_shaped  rank r runs the stages r and 2p-1-r: down the ranks and back up, so that the last stage is on the first rank
enum class StageRoute { looped, v_shaped };

// How many micro-batches a schedule takes.
enum class MicroBatchRule { any, multiple_of_ranks, at_least_two_per_rank };

// A schedule, and what it needs. A new one is a generator of actions (schedule/generators.h) and a line in schedule/registry.cpp.
struct ScheduleKind {
  const char* name;     // as pipeline.schedule spells it
  const char* summary;  // one sentence for people
  StageRoute route;
  int min_stages_per_rank, default_stages_per_rank, max_stages_per_rank;
  MicroBatchRule micro_batches;
  bool splits_backward;  // input and weight gradients are actions of their own
  RankActions (*actions)(const PipelineSize&);
};

// All of them, in the order in which they are listed to people.
std::span<const ScheduleKind> schedule_kinds();
std::vector<std::string> schedule_names();
inline constexpr const char* kDefaultSchedule = "1f1b";

struct ScheduleRequest {
  std::string name = kDefaultSchedule;
  int ranks = 1;
  int stages_per_rank = 0;  // 0: the schedule's default
  int micro_batches = 1;
};

// The schedule of that name and size. Bad input: an unknown name, or a size that the schedule cannot take; the error names one that it can.
Schedule make_schedule(const ScheduleRequest& request);

// Stage, kind and micro-batch as people write them: 0F0, 1B0, 3I2, 3W2, 0R1 (recompute), 0O1 (offload), 0UNSHARD (gather), 0REDUCE_GRAD.
std::string to_string(const Action& action);

}  // namespace cairn::parallel
