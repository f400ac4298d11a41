#pragma once
#include <string>
#include <vector>

namespace cairn::parallel {

// What a rank does next. `backward` is both gradients at once; zero-bubble schedules place the input gradient and the weight gradient
// apart.
enum class ActionKind { forward, backward, backward_input, backward_weight };

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;

  bool operator==(const Action&) const = default;
};

// The order in which the ranks of a pipeline work: data that the runtime executes, `check` proves free of deadlock and `timeline` costs.
// Sends and receives follow from it: a stage's output goes to the rank of the next stage, its input's gradient to that of the one before.
struct Schedule {
  std::string name;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;            // the route: which rank along pp runs each (virtual) stage
  std::vector<std::vector<Action>> actions;  // by rank along pp, in order

  int ranks() const { return static_cast<int>(actions.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool operator==(const Schedule&) const = default;
};

struct ScheduleRequest {
  std::string name = "1f1b";
  int ranks = 1;
  int stages_per_rank = 0;  // 0: what the schedule likes, 1 or 2
  int micro_batches = 1;
};

// Sizes beyond these are mistakes: nobody waits for a step of so many actions.
inline constexpr int kPipelineRanksMax = 4096;
inline constexpr int kActionsMax = 1 << 22;

// The schedule of that name and size; the list of them is in schedules.cpp. Bad input: a name that is not there, or a size that the
// schedule cannot take, with one that it can.
Schedule make_schedule(const ScheduleRequest& request);
std::vector<std::string> schedule_names();

// Stage, kind and micro-batch as people write them: 0F0, 1B0, 3I2, 3W2.
std::string to_string(const Action& action);

}  // namespace cairn::parallel
