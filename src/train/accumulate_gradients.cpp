#include "train/accumulate_gradients.h"

#include <algorithm>

#include "base/trace.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "parallel/step_plan/unit_batch.h"

namespace cairn::train {
namespace {

// A pass over each batch; `all` must not move in memory afterwards.
void add_passes(Engine& engine, TrainingPasses& all, double weight, int64_t step) {
  for (const mesh::Batch& micro_batch : all.batches) {
    const mesh::Axes& axes = all.axes.empty() ? engine.axes : all.axes[all.passes.size()];
    const model::Weights& at = engine.owned.copies ? engine.owned.copies->weights() : engine.store->weights();
    parallel::Pass& pass = all.passes.emplace_back(pass_over(engine, micro_batch, axes, at));
    pass.into = engine.owned.copies ? &engine.owned.copies->sink() : &engine.store->sink();
    pass.weight = weight;
    pass.random = engine.random.for_index(static_cast<uint64_t>(step));
    pass.trace = engine.trace;
    pass.memory = engine.memory;
    pass.frozen = engine.frozen.get();
    pass.recompute = engine.options.recompute_last || all.passes.size() < all.batches.size();
  }
}

}  // namespace

TrainingPasses training_passes(Engine& engine, const mesh::Batch& batch, int64_t max_local_samples, double weight, int64_t step) {
  const auto parts = engine.micro_batching.count > 0
                         ? data::even_micro_batches(batch.samples(), engine.micro_batching.count)
                         : data::micro_batches(batch.samples(), engine.micro_batching.samples, max_local_samples);
  TrainingPasses all;
  const bool runs_all = engine.options.experts != nullptr;  // rows of other ranks reach this one's experts in every pass
  all.with_samples = std::count_if(parts.begin(), parts.end(), [&](const data::BatchRange& part) { return runs_all || part.count > 0; });
  for (const data::BatchRange& part : parts) all.batches.push_back(mesh::slice(batch, part.first, part.first + part.count));
  all.max_passes = static_cast<int64_t>(all.batches.size());
  add_passes(engine, all, weight, step);
  return all;
}

TrainingPasses planned_passes(Engine& engine, const mesh::Batch& sequences, const parallel::StepPlan& plan, double weight, int64_t step) {
  TrainingPasses all;
  all.batches = parallel::unit_batches(plan, engine.micro_batching.pool.rank, sequences);
  all.max_passes = parallel::max_passes(plan);
  std::vector<int64_t> units = parallel::passes_of(plan, engine.micro_batching.pool.rank);
  // Ranks that share state count rounds of reductions by passes: those with fewer units end with empty passes.
  units.resize(static_cast<size_t>(all.max_passes), parallel::kNoUnit);
  mesh::Batch empty_batch;
  empty_batch.ids = sequences.ids.narrow(0, 0, 0);
  empty_batch.progress = sequences.progress;
  all.batches.resize(units.size(), empty_batch);
  for (const int64_t u : units) {
    mesh::Axes& axes = all.axes.emplace_back(engine.axes);
    const bool empty = u == parallel::kNoUnit;
    if (!empty && plan.units[static_cast<size_t>(u)].ranks.size() > 1)
      axes.put("cp", engine.micro_batching.pool.group(plan.units[static_cast<size_t>(u)].ranks));
    all.samples_in.push_back(empty ? 0 : 1);
    if (!empty) ++all.with_samples;
  }
  add_passes(engine, all, weight, step);
  return all;
}

std::vector<at::Tensor> accumulate_gradients(Engine& engine, const TrainingPasses& all, const std::function<void(int64_t piece)>& ready,
                                             const std::function<std::vector<at::Tensor>(std::span<const parallel::Pass>)>& run) {
  parallel::GradientReducer& reducer = engine.store->reducer();
  reducer.begin(all.with_samples * all.backward_passes, all.max_passes * all.backward_passes, ready, all.samples_in, all.some_leave_out);
  if (engine.owned.copies) engine.owned.copies->begin();
  std::vector<at::Tensor> found = run(all.passes);
  if (engine.owned.copies) engine.owned.copies->end();
  const auto traced = engine.trace->span("wait for gradients", "sync");
  reducer.finish();
  return found;
}

std::vector<at::Tensor> sum_losses(std::span<const model::Losses> losses) {
  at::Tensor sum, measures;
  for (const model::Losses& one : losses) {
    sum = sum.defined() ? sum + one.sum : one.sum;
    if (one.measures.defined()) measures = measures.defined() ? measures + one.measures : one.measures;
  }
  return {sum, measures};
}

}  // namespace cairn::train
