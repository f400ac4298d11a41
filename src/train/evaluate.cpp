#include "train/evaluate.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "comm/flight/recorder.h"
#include "comm/group.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "parallel/step_plan/unit_batch.h"
#include "train/build.h"
#include "train/islands/scoped_global_parameters.h"

namespace cairn::train {

int64_t held_out_samples(const Job& job) { return std::min(job.data.samples->held_out().count, job.config.settings.eval.samples); }

HeldOut evaluate_held_out(Job& job, const std::function<void(double done)>& progress) {
  const data::SampleRange held = job.data.samples->held_out();
  const int64_t count = held_out_samples(job);
  if (count == 0) return {};
  const auto traced = job.instruments.trace->span("evaluate", "evaluate");
  const comm::ScopedActivity evaluating(job.instruments.flight, comm::Activity::evaluating);
  const std::chrono::nanoseconds begun = job.instruments.wall->now();
  const ScopedGlobalParameters global(job);
  const data::BatchRange share = job.shares.within_step_group(count);
  const size_t measured = model::measures_of(*job.engine.model, *job.engine.objective).size();
  std::vector<double> sums(2 + measured);                                           // loss, its denominator, measures
  const int64_t micro_batch = job.ahead.planner ? 1 : job.config.plan.micro_batch;  // sequences of any length: one by one
  for (const data::BatchRange& part :
       data::micro_batches(share.count, micro_batch, (count + job.shares.step_group_ranks - 1) / job.shares.step_group_ranks)) {
    std::vector<int64_t> ids(static_cast<size_t>(part.count));
    std::iota(ids.begin(), ids.end(), held.first + share.first + part.first);
    mesh::Batch batch = mesh::to_device(job.batches->fill(ids), job.config.device);
    if (job.ahead.planner && !ids.empty()) batch = parallel::sequence_batch(batch);
    const model::Losses losses = job.step->evaluate(job.engine, batch);
    sums[0] += losses.sum.item<double>();
    sums[1] += losses.count.to(at::kDouble).item<double>();
    const at::Tensor measures = losses.measures.defined() ? losses.measures.cpu() : at::Tensor();
    for (size_t i = 0; measures.defined() && i < std::min(measured, static_cast<size_t>(measures.numel())); ++i)
      sums[2 + i] += measures.const_data_ptr<double>()[i];
    job.engine.sync->progress({});  // messages of earlier steps
    if (progress) progress(static_cast<double>(part.first + part.count) / static_cast<double>(share.count));
  }
  job.engine.step_group
      ->all_reduce({sums.data(), static_cast<int64_t>(sums.size()), comm::Dtype::f64}, comm::Reduce::sum,
                   {comm::Purpose::loss, "held-out loss"})
      .wait_host();
  HeldOut found{.loss = sums[0] / sums[1], .measures = {}, .seconds = base::seconds(job.instruments.wall->now() - begun)};
  for (size_t i = 0; i < measured; ++i) found.measures.push_back(sums[2 + i] / sums[1]);
  return found;
}

}  // namespace cairn::train
