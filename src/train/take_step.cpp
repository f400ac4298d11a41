#include "train/take_step.h"

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "comm/flight/recorder.h"
#include "mesh/write_barrier.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/flops.h"
#include "train/learning_rate.h"
#include "train/sample_feedback.h"
#include "train/step_methods.h"
#include "train/step_plan/planned_batches.h"
#include "train/sync_check.h"

namespace cairn::train {
namespace {

// The loss of the step group is a mean over so many tokens, or samples.
int64_t loss_denominator(const Job& job, const data::BatchCounts& counts) {
  const bool by_token = job.engine.objective->separates() == model::Objective::Separates::tokens;
  return std::max<int64_t>(by_token ? counts.step_group_tokens : counts.step_group_samples, 1);  // a batch may have no target at all
}

StepOutput run_step(Job& job, StepInput input) {
  input.update = input.step - job.progress.updates_skipped;
  input.ahead = [&](int64_t steps) {
    const data::BatchIndex index = batch_index(job, input.step + steps);
    const data::BatchCounts counts = job.batches->counts(index);
    return BatchShare{mesh::to_device(job.batches->make(index), job.config.device), loss_denominator(job, counts),
                      counts.max_local_samples};
  };
  if (job.bad_steps->before_update())
    input.approve = [&](const at::Tensor& loss_sum, const at::Tensor& norm) {
      return job.bad_steps->approve(input.loss_denominator, loss_sum, norm);
    };
  KernelReport* const kernels = job.instruments.kernel_report.get();
  if (kernels) kernels->before_step();
  if (!step_method(job.config.settings).needs.announces_writes) mesh::before_writing_all(job.engine.trained.barrier);
  StepOutput output = job.step->run(job.engine, input);
  if (kernels) kernels->after_step();
  return output;
}

// Tokens and FLOPs of the step group's sequences, each of its own length.
void count_sequences(const Job& job, const data::BatchCounts& counts, TakenStep& taken) {
  const data::BatchRange own = job.shares.of_step_group(static_cast<int64_t>(counts.ids.size()));
  const double one = training_flops_per_token(job, 1), more = training_flops_per_token(job, 2) - one;  // linear in the length
  taken.positions = 0;
  for (int64_t i = own.first; i < own.first + own.count; ++i) {
    const int64_t length = job.data.samples->length_of(counts.ids[static_cast<size_t>(i)]);
    taken.positions += length;
    taken.flops += static_cast<double>(length) * (one + more * static_cast<double>(length - 1));
  }
}

// FLOPs and metrics of samples of another shape than their own.
void count_clips(const Job& job, const data::BatchCounts& counts, TakenStep& taken) {
  taken.shape = counts.shape;
  const auto pixels = [](const data::SampleShape& shape) { return static_cast<double>(shape.frames * shape.size * shape.size); };
  taken.flops = static_cast<double>(counts.step_group_samples) * training_flops_per_token(job) * pixels(counts.shape) / pixels(job.data.shape);
  taken.sampler_metrics.insert(taken.sampler_metrics.end(), {{"frames", static_cast<double>(counts.shape.frames)},
                                                             {"size", static_cast<double>(counts.shape.size)},
                                                             {"clips", static_cast<double>(counts.ids.size())}});
}

// What the plan of a step says, for the metrics.
sync::StepMetrics metrics_of(const PlannedBatch& planned) {
  size_t most = 0;
  double sequences = 0;
  for (const parallel::StepUnit& unit : planned.plan.units)
    most = std::max(most, unit.ranks.size()), sequences += static_cast<double>(unit.sequences.size());
  return {{"plan_units", static_cast<double>(planned.plan.units.size())},
          {"plan_sequences", sequences},
          {"plan_ranks_most", static_cast<double>(most)},
          {"plan_step_seconds", parallel::predicted_step_s(planned.plan)},
          {"plan_imbalance", parallel::predicted_imbalance(planned.plan)},
          {"plan_seconds", planned.planning_s}};
}

}  // namespace

TakenStep take_step(Job& job) {
  const int64_t step = job.progress.steps_done + 1;
  for (const auto& one : job.between_steps) one->before_step(step);
  const data::BatchIndex index = batch_index(job, step);
  if (index.batch() >= job.sampler->known()) start_loader(job);  // the sampler decides the next epoch
  const data::BatchCounts counts = job.batches->counts(index);
  TakenStep taken{
      .batch = index.batch(),
      .samples = base::checksum(std::as_bytes(std::span(counts.ids))),
      .tokens = counts.tokens,
      .loss_denominator = loss_denominator(job, counts),
      .positions = counts.step_group_samples * job.config.settings.data.needs().sequences() * std::max<int64_t>(job.data.length, 1)};
  if (job.ahead.planner) count_sequences(job, counts, taken);
  taken.learning_rate = learning_rate_of(job, step, counts.learning_rate_factor);
  taken.sampler_metrics = epoch_metrics(job, step);
  if (counts.shape.frames > 0) count_clips(job, counts, taken);
  const std::chrono::nanoseconds asked = job.instruments.wall->now();
  comm::FlightRecorder* const flight = job.instruments.flight;
  if (flight) flight->begin_step(step), flight->set_activity(comm::Activity::loading);
  PlannedBatch planned;
  if (job.ahead.planned) {
    planned = job.ahead.planned->next();
    taken.plan = planned.plan;
    taken.plan_metrics = metrics_of(planned);
  }
  const mesh::Batch waiting = job.ahead.planned ? planned.sequences : job.ahead.loader->next();
  if (flight) flight->set_activity(comm::Activity::computing);
  taken.data_wait_s = base::seconds(job.instruments.wall->now() - asked);
  const model::StreamOptions& streams = job.config.settings.model.parscale;
  job.engine.options.single_stream = streams.streams > 1 && step <= streams.start_step;
  const SyncCheck check(job.config.settings.log.sync_check && job.config.device.is_cuda());
  const mesh::Batch batch = mesh::to_device(waiting, job.config.device);
  taken.output = run_step(job, {.step = step,
                                .batch = batch,
                                .tokens = counts.step_group_tokens,
                                .loss_denominator = taken.loss_denominator,
                                .learning_rate = taken.learning_rate,
                                .max_local_samples = counts.max_local_samples,
                                .keeps_sample_losses = job.sample_losses != nullptr,
                                .plan = job.ahead.planned ? &planned.plan : nullptr});
  keep_sample_losses(job, counts.ids, taken.output);
  if (job.engine.owned.experts)
    for (auto& metric : job.engine.owned.experts->take_metrics()) taken.sampler_metrics.push_back(std::move(metric));
  if (flight) flight->end_step(), flight->set_activity(comm::Activity::updating);  // what a rank does beside its passes
  return taken;
}

void skip_step(Job& job) {
  const int64_t step = job.progress.steps_done + 1;
  for (const auto& one : job.between_steps) one->before_step(step);
  job.ahead.planned ? (void)job.ahead.planned->next() : (void)job.ahead.loader->next();
  job.engine.sync->after_step({.step = step, .skipped = true}).wait();
  job.progress.updates_skipped += 1;
}

}  // namespace cairn::train
