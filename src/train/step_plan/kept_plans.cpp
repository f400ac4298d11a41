#include "train/step_plan/kept_plans.h"

#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"

namespace cairn::train {

std::map<int64_t, parallel::StepPlan> read_kept_plans(const std::filesystem::path& run) {
  std::map<int64_t, parallel::StepPlan> plans;
  std::ifstream in(run / kPlansFile, std::ios::binary);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) break;  // without the end of a line
    parallel::StepPlan plan = parallel::parse_step_plan(line, fmt::format("{}:{}", (run / kPlansFile).string(), number));
    const int64_t step = plan.step;
    plans.insert_or_assign(step, std::move(plan));
  }
  return plans;
}

PlannedBatches::Planner plan_as_kept(std::map<int64_t, parallel::StepPlan> kept, PlannedBatches::Planner otherwise) {
  return [kept = std::move(kept), otherwise = std::move(otherwise)](int64_t step, const std::vector<parallel::PlannedSequence>& sequences) {
    const auto found = kept.find(step);
    if (found == kept.end()) return otherwise(step, sequences);
    check(found->second, static_cast<int64_t>(sequences.size()));
    for (const parallel::StepUnit& unit : found->second.units)
      for (const parallel::PlannedSequence& one : unit.sequences)
        if (const int64_t length = sequences[static_cast<size_t>(one.place)].length; length != one.length)
          base::fail_input(
              "{}: the plan of step {} has a sequence of {} tokens where the data has one of {}. Replay on the data of the run.",
              kPlansFile, step, one.length, length);
    return found->second;
  };
}

}  // namespace cairn::train
