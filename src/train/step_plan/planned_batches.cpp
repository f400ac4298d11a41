#include "train/step_plan/planned_batches.h"

#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"
#include "data/dataset.h"
#include "parallel/step_plan/unit_batch.h"

namespace cairn::train {

PlannedBatches::PlannedBatches(Parts parts, const data::BatchIndex& from, int64_t last_step)
    : parts_(std::move(parts)), from_(from), last_step_(last_step), next_(from.step) {
  if (next_ > last_step_) return;
  start_planning(next_);
  Planned first = agree(next_);
  start_planning(next_ + 1);
  start_reading(std::move(first));
}

PlannedBatches::~PlannedBatches() = default;  // futures of std::async wait for their threads

std::vector<int64_t> PlannedBatches::ids_of(int64_t step) const {
  const std::vector<int64_t> all = parts_.source.ids({step, from_.batches_skipped});
  const data::BatchRange own = parts_.source.shares().of_step_group(static_cast<int64_t>(all.size()));
  return {all.begin() + own.first, all.begin() + own.first + own.count};
}

void PlannedBatches::start_planning(int64_t step) {
  if (parts_.step_group.rank() != 0 || step > last_step_) return;
  planning_ = std::async(std::launch::async, [this, step] {
    const base::RealClock clock;
    const auto begun = clock.now();
    std::vector<parallel::PlannedSequence> sequences;
    for (const int64_t id : ids_of(step)) sequences.push_back({static_cast<int64_t>(sequences.size()), parts_.dataset.length_of(id)});
    Planned planned{.plan = parts_.planner(step, sequences)};
    check(planned.plan, static_cast<int64_t>(sequences.size()));
    planned.seconds = base::seconds(clock.now() - begun);
    return planned;
  });
}

PlannedBatches::Planned PlannedBatches::agree(int64_t step) {
  const comm::Label label{comm::Purpose::control, "step plan"};
  // A planner that refuses a step ends the run on all ranks: the others get its error from World::fail.
  Planned planned;
  std::string text;
  if (parts_.step_group.rank() == 0) {
    planned = planning_.get();
    text = to_json(planned.plan);
  }
  auto bytes = static_cast<int64_t>(text.size());
  parts_.step_group.broadcast({.data = &bytes, .count = 1, .dtype = comm::Dtype::i64}, 0, label).wait_host();
  text.resize(static_cast<size_t>(bytes));
  parts_.step_group.broadcast({.data = text.data(), .count = bytes, .dtype = comm::Dtype::u8}, 0, label).wait_host();
  planned.plan = parallel::parse_step_plan(text, fmt::format("the plan of step {}", step));
  CAIRN_CHECK(planned.plan.step == step && planned.plan.ranks == parts_.pool_ranks, "a plan of step {} for {} ranks, in step {} of {}",
              planned.plan.step, planned.plan.ranks, step, parts_.pool_ranks);
  compare(planned.plan);
  return planned;
}

void PlannedBatches::compare(const parallel::StepPlan& plan) const {
  parallel::StepPlan own = plan;
  const std::vector<int64_t> ids = ids_of(plan.step);
  for (parallel::StepUnit& unit : own.units)
    for (parallel::PlannedSequence& one : unit.sequences)
      one.length = one.place < static_cast<int64_t>(ids.size()) ? parts_.dataset.length_of(ids[static_cast<size_t>(one.place)]) : 0;
  const auto hash = static_cast<int64_t>(plan_hash(own) >> 1);
  std::array<int64_t, 2> most{hash, -hash};
  parts_.step_group.all_reduce({most.data(), 2, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "hash of a step plan"})
      .wait_host();
  if (most[0] == -most[1]) return;
  base::fail_input(
      "context.plan: ranks do not agree on step {} (hashes {:016x} to {:016x}): their documents differ in length. Give all ranks the same "
      "data.path.",
      plan.step, -most[1], most[0]);
}

void PlannedBatches::start_reading(Planned planned) {
  reading_ = std::async(std::launch::async, [this, planned = std::move(planned)]() mutable {
    const std::vector<int64_t> ids = ids_of(planned.plan.step);
    std::vector<int64_t> own;
    for (const int64_t place : parallel::places_of(planned.plan, parts_.pool_rank)) own.push_back(ids[static_cast<size_t>(place)]);
    mesh::Batch sequences = parts_.source.fill(own);
    sequences.progress = parts_.source.progress({planned.plan.step, from_.batches_skipped});
    return PlannedBatch{std::move(planned.plan), std::move(sequences), planned.seconds};
  });
}

PlannedBatch PlannedBatches::next() {
  CAIRN_CHECK(next_ <= last_step_, "asked for step {}, and step {} is the last", next_, last_step_);
  PlannedBatch batch = reading_.get();
  ++next_;
  if (next_ > last_step_) return batch;
  Planned planned = agree(next_);
  start_planning(next_ + 1);
  start_reading(std::move(planned));
  return batch;
}

}  // namespace cairn::train
