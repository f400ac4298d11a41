#include "parallel/schedule/check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::parallel {
namespace {

[[noreturn]] void refuse(const Schedule& schedule, const std::string& reason) {
  base::fail_input("schedule {}: {}", schedule.name, reason);
}

void check_sizes(const Schedule& schedule) {
  if (schedule.ranks() < 1 || schedule.ranks() > kPipelineRanksMax)
    refuse(schedule, fmt::format("{} ranks; must be 1 to {}", schedule.ranks(), kPipelineRanksMax));
  if (schedule.micro_batches < 1) refuse(schedule, fmt::format("{} micro-batches; must be at least 1", schedule.micro_batches));
  std::vector<bool> used(schedule.ranks());
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const int rank = schedule.rank_of_stage[stage];
    if (rank < 0 || rank >= schedule.ranks())
      refuse(schedule, fmt::format("stage {} is on rank {}; ranks are 0 to {}", stage, rank, schedule.ranks() - 1));
    used[rank] = true;
  }
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    if (!used[rank]) refuse(schedule, fmt::format("rank {} runs no stage; use fewer ranks, or give it one", rank));
}

void check_action(const Schedule& schedule, int rank, const Action& action) {
  const std::string word = to_string(action);
  if (action.stage < 0 || action.stage >= schedule.stages())
    refuse(schedule, fmt::format("{} on rank {}: stages are 0 to {}", word, rank, schedule.stages() - 1));
  if (of_whole_stage(action.kind) && action.micro_batch != 0)
    refuse(schedule, fmt::format("{} on rank {}: is of a stage, not of micro-batch {}", word, rank, action.micro_batch));
  if (action.micro_batch < 0 || action.micro_batch >= schedule.micro_batches)
    refuse(schedule, fmt::format("{} on rank {}: micro-batches are 0 to {}", word, rank, schedule.micro_batches - 1));
  if (schedule.rank_of_stage[action.stage] != rank)
    refuse(schedule, fmt::format("{} on rank {}: stage {} is on rank {}", word, rank, action.stage, schedule.rank_of_stage[action.stage]));
}

// Every action once, none left out. Sorted lists instead of tables, because a file may name any stage and micro-batch.
void check_counts(const Schedule& schedule) {
  std::vector<Action> all;
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    for (const Action& action : schedule.actions[rank]) {
      check_action(schedule, rank, action);
      all.push_back(action);
    }
  std::sort(all.begin(), all.end(), [](const Action& a, const Action& b) {
    return std::tuple(a.stage, a.micro_batch, a.kind) < std::tuple(b.stage, b.micro_batch, b.kind);
  });
  const auto twin = std::adjacent_find(all.begin(), all.end());
  if (twin != all.end()) refuse(schedule, fmt::format("{} is there twice; each action runs once", to_string(*twin)));
  auto at = all.begin();
  for (int stage = 0; stage < schedule.stages(); ++stage)
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      bool has[kActionKinds] = {};
      for (; at != all.end() && at->stage == stage && at->micro_batch == micro_batch; ++at) has[static_cast<int>(at->kind)] = true;
      const auto [forward, backward, input, weight] = std::tuple(has[0], has[1], has[2], has[3]);
      if (backward && (input || weight))
        refuse(schedule, fmt::format("{}B{} is both gradients, and {} is there too; leave out one", stage, micro_batch,
                                     fmt::format("{}{}{}", stage, input ? 'I' : 'W', micro_batch)));
      if (forward && (backward || (input && weight))) continue;
      const std::string missing =
          !forward ? fmt::format("{}F{} is missing", stage, micro_batch)
          : input  ? fmt::format("{}I{} has no {}W{}", stage, micro_batch, stage, micro_batch)
          : weight ? fmt::format("{}W{} has no {}I{}", stage, micro_batch, stage, micro_batch)
                   : fmt::format("{}B{} (or {}I{} and {}W{}) is missing", stage, micro_batch, stage, micro_batch, stage, micro_batch);
      refuse(schedule, fmt::format("{}; each of the {} stages needs a forward and a backward of each of the {} micro-batches", missing,
                                   schedule.stages(), schedule.micro_batches));
    }
}

// Gather comes before its stage, reduce after it; recompute and offload lie between the forward and the backward of their micro-batch.
void check_places(const Schedule& schedule) {
  const auto after = [&](const Action& late, const Action& early) {
    refuse(schedule, fmt::format("{} comes after {}; put it before", to_string(late), to_string(early)));
  };
  for (const std::vector<Action>& list : schedule.actions) {
    std::map<std::pair<int, int>, Action> last;  // by stage and micro-batch: forward, offload, recompute or backward
    std::map<int, Action> reduced;               // by stage
    for (const Action& action : list) {
      const auto before = last.find({action.stage, action.micro_batch});
      const auto sent = reduced.find(action.stage);
      const bool gradient = action.kind != ActionKind::forward && action.kind != ActionKind::recompute;
      if (sent != reduced.end() && gradient && computes(action.kind)) after(action, sent->second);
      if (action.kind == ActionKind::reduce) {
        reduced[action.stage] = action;
      } else if (action.kind == ActionKind::gather) {
        const auto first = last.lower_bound({action.stage, 0});
        if (first != last.end() && first->first.first == action.stage) after(action, first->second);
      } else if (action.kind == ActionKind::recompute || action.kind == ActionKind::offload) {
        if (before == last.end())
          refuse(schedule, fmt::format("{} comes before the forward of its micro-batch; put it after", to_string(action)));
        const bool late = before->second.kind != ActionKind::forward && before->second.kind != ActionKind::offload;
        if (late) after(action, before->second);
        before->second = action;
      } else if (action.kind != ActionKind::backward_weight) {
        last[{action.stage, action.micro_batch}] = action;
      }
    }
  }
}

// Executes the ranks' lists, each until something it needs is missing. A rank is queued again when a stage next to one of its own finishes.
class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule),
        there_(size_t{2} * schedule.stages() * schedule.micro_batches),
        position_(schedule.ranks()),
        queued_(schedule.ranks()) {}

  void run(const std::function<void(int, const Action&)>& act) {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) wake(rank);
    while (!queue_.empty()) {
      const int rank = queue_.front();
      queue_.pop_front();
      queued_[rank] = false;
      for (; const Action* action = next(rank); ++position_[rank]) {
        if (missing(*action)) break;
        act(rank, *action);
        finish(*action);
      }
    }
  }

  // The next action of a rank; null: it has done all.
  const Action* next(int rank) const {
    const std::vector<Action>& list = schedule_.actions[rank];
    return position_[rank] < list.size() ? &list[position_[rank]] : nullptr;
  }

  std::optional<StageResult> missing(const Action& action) const {
    for (const StageResult& result : needs(action, schedule_.stages()))
      if (!there_[index(result)]) return result;
    return std::nullopt;
  }

 private:
  size_t index(const StageResult& result) const {
    const size_t kind = result.kind == StageResult::Kind::output ? 0 : 1;
    return (kind * schedule_.stages() + result.stage) * schedule_.micro_batches + result.micro_batch;
  }

  // Wakes the rank of the neighbouring stage. (A rank that waits for its own later action is a deadlock and needs no wake-up.)
  void finish(const Action& action) {
    const int stage = action.stage;
    if (action.kind == ActionKind::forward) {
      there_[index({StageResult::Kind::output, stage, action.micro_batch})] = true;
      if (stage + 1 < schedule_.stages()) wake(schedule_.rank_of_stage[stage + 1]);
    } else if (makes_input_gradient(action.kind)) {
      there_[index({StageResult::Kind::input_gradient, stage, action.micro_batch})] = true;
      if (stage > 0) wake(schedule_.rank_of_stage[stage - 1]);
    }
  }

  void wake(int rank) {
    if (queued_[rank]) return;
    queued_[rank] = true;
    queue_.push_back(rank);
  }

  const Schedule& schedule_;
  std::vector<bool> there_;
  std::vector<size_t> position_;
  std::vector<bool> queued_;
  std::deque<int> queue_;
};

// The action on `rank` that would make it.
Action maker(const Schedule& schedule, int rank, const StageResult& result) {
  for (const Action& action : schedule.actions[rank]) {
    const bool makes = result.kind == StageResult::Kind::output ? action.kind == ActionKind::forward : makes_input_gradient(action.kind);
    if (makes && action.stage == result.stage && action.micro_batch == result.micro_batch) return action;
  }
  CAIRN_CHECK(false, "nothing makes stage {}, micro-batch {}", result.stage, result.micro_batch);
}

// Follows who waits for whom until a rank repeats: the cycle.
[[noreturn]] void refuse_deadlock(const Schedule& schedule, const Walk& walk, int rank) {
  std::vector<int> followed;
  std::vector<std::string> waits;
  while (std::find(followed.begin(), followed.end(), rank) == followed.end()) {
    const Action& action = *walk.next(rank);
    const StageResult result = *walk.missing(action);
    const int other = schedule.rank_of_stage[result.stage];
    const std::string awaited = to_string(maker(schedule, other, result));
    followed.push_back(rank);
    waits.push_back(other == rank ? fmt::format("rank {} at {} needs its own {}, which comes later", rank, to_string(action), awaited)
                                  : fmt::format("rank {} at {} waits for {} of rank {}", rank, to_string(action), awaited, other));
    rank = other;
  }
  waits.erase(waits.begin(), waits.begin() + (std::find(followed.begin(), followed.end(), rank) - followed.begin()));
  constexpr size_t kShown = 8;
  const size_t left_out = waits.size() > kShown ? waits.size() - kShown : 0;
  if (left_out > 0) waits.erase(waits.begin() + kShown / 2, waits.end() - kShown / 2);
  if (left_out > 0) waits.insert(waits.begin() + kShown / 2, fmt::format("({} more)", left_out));
  refuse(schedule, fmt::format("deadlock: {}; put one of them earlier", fmt::join(waits, ", ")));
}

}  // namespace

std::vector<StageResult> needs(const Action& action, int stages) {
  const auto [kind, stage, micro_batch] = action;
  std::vector<StageResult> results;
  if (kind == ActionKind::forward) {
    if (stage > 0) results.push_back({StageResult::Kind::output, stage - 1, micro_batch});
  } else if (kind == ActionKind::backward_weight) {
    results.push_back({StageResult::Kind::input_gradient, stage, micro_batch});
  } else if (kind == ActionKind::recompute || kind == ActionKind::offload) {
    results.push_back({StageResult::Kind::output, stage, micro_batch});
  } else if (makes_input_gradient(kind)) {
    results.push_back({StageResult::Kind::output, stage, micro_batch});
    if (stage + 1 < stages) results.push_back({StageResult::Kind::input_gradient, stage + 1, micro_batch});
  }
  return results;
}

void check(const Schedule& schedule) {
  check_sizes(schedule);
  check_counts(schedule);
  Walk walk(schedule);
  walk.run([](int, const Action&) {});
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    if (walk.next(rank) != nullptr) refuse_deadlock(schedule, walk, rank);
  check_places(schedule);
}

void in_running_order(const Schedule& schedule, const std::function<void(int, const Action&)>& act) {
  Walk walk(schedule);
  walk.run(act);
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    CAIRN_CHECK(walk.next(rank) == nullptr, "schedule {} stops on rank {}: check it first", schedule.name, rank);
}

std::string to_string(const Action& action) {
  static constexpr const char* kWords[kActionKinds] = {"F", "B", "I", "W", "R", "UNSHARD", "REDUCE_GRAD", "O"};
  const char* word = kWords[static_cast<int>(action.kind)];
  return of_whole_stage(action.kind) ? fmt::format("{}{}", action.stage, word)
                                     : fmt::format("{}{}{}", action.stage, word, action.micro_batch);
}

}  // namespace cairn::parallel
