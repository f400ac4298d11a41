#include "train/step_plan/planned_batches.h"

#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "data/dataset.h"
#include "parallel/step_plan/unit_batch.h"

namespace cairn::train {

PlannedBatches::PlannedBatches(comm::Group& pool, const data::BatchSource& source, const data::Dataset& dataset, Planner planner,
                               const data::BatchIndex& from, int64_t last_step, std::filesystem::path record)
    : pool_(pool),
      source_(source),
      dataset_(dataset),
      planner_(std::move(planner)),
      from_(from),
      last_step_(last_step),
      record_(std::move(record)),
      next_(from.step) {
  if (next_ > last_step_) return;
  start_planning(next_);
  start_reading(agree(next_));
  start_planning(next_ + 1);
}

PlannedBatches::~PlannedBatches() = default;  // futures of std::async wait for their threads

std::vector<int64_t> PlannedBatches::ids_of(int64_t step) const {
  const std::vector<int64_t> all = source_.ids({step, from_.batches_skipped});
  const data::BatchRange own = source_.shares().of_step_group(static_cast<int64_t>(all.size()));
  return {all.begin() + own.first, all.begin() + own.first + own.count};
}

void PlannedBatches::start_planning(int64_t step) {
  if (pool_.rank() != 0 || step > last_step_) return;
  planning_ = std::async(std::launch::async, [this, step] {
    std::vector<parallel::PlannedSequence> sequences;
    for (const int64_t id : ids_of(step)) sequences.push_back({static_cast<int64_t>(sequences.size()), dataset_.length_of(id)});
    parallel::StepPlan plan = planner_(step, sequences);
    check(plan, static_cast<int64_t>(sequences.size()));
    return plan;
  });
}

parallel::StepPlan PlannedBatches::agree(int64_t step) {
  const comm::Label label{comm::Purpose::control, "step plan"};
  // A planner that refuses a step ends the run on all ranks: the others get an error from rank 0's World::fail.
  std::string text = pool_.rank() == 0 ? to_json(planning_.get()) : "";
  auto bytes = static_cast<int64_t>(text.size());
  pool_.broadcast({.data = &bytes, .count = 1, .dtype = comm::Dtype::i64}, 0, label).wait();
  text.resize(static_cast<size_t>(bytes));
  pool_.broadcast({.data = text.data(), .count = bytes, .dtype = comm::Dtype::u8}, 0, label).wait();
  if (pool_.rank() == 0 && !record_.empty()) std::ofstream(record_, std::ios::app) << text << '\n';
  parallel::StepPlan plan = parallel::parse_step_plan(text, fmt::format("the plan of step {}", step));
  CAIRN_CHECK(plan.step == step && plan.ranks == pool_.size(), "a plan of step {} for {} ranks, in step {} of {}", plan.step, plan.ranks,
              step, pool_.size());
  return plan;
}

void PlannedBatches::start_reading(parallel::StepPlan plan) {
  reading_ = std::async(std::launch::async, [this, plan = std::move(plan)]() mutable {
    const std::vector<int64_t> ids = ids_of(plan.step);
    std::vector<int64_t> own;
    for (const int64_t place : parallel::places_of(plan, pool_.rank())) own.push_back(ids[static_cast<size_t>(place)]);
    mesh::Batch sequences = source_.fill(own);
    sequences.progress = source_.progress({plan.step, from_.batches_skipped});
    return PlannedBatch{std::move(plan), std::move(sequences)};
  });
}

PlannedBatch PlannedBatches::next() {
  CAIRN_CHECK(next_ <= last_step_, "asked for step {}, and step {} is the last", next_, last_step_);
  PlannedBatch batch = reading_.get();
  ++next_;
  if (next_ > last_step_) return batch;
  start_reading(agree(next_));
  start_planning(next_ + 1);
  return batch;
}

}  // namespace cairn::train
