#include "train/take_step.h"

#include "base/checksum.h"
#include "data/batch_split.h"
#include "train/build.h"
#include "train/sync_check.h"

namespace cairn::train {
namespace {

// What the global batch of a step comes to. Every rank can tell without asking, since the order of samples is defined globally.
struct Counts {
  std::vector<int64_t> ids;
  int64_t tokens = 0;            // of all
  int64_t own = 0;               // of the company
  int64_t loss_denominator = 0;  // what the company's loss is a mean over
  int64_t max_local_samples = 0;
};

Counts counts_of(const Job& job, int64_t step) {
  Counts counts{.ids = batch_ids(job, step)};
  const auto count = static_cast<int64_t>(counts.ids.size());
  const int64_t first = job.samples_of(count, job.step_group_first).first;
  const data::BatchRange last = job.samples_of(count, job.step_group_first + job.step_group_ranks - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t tokens = job.data.samples->tokens_in(counts.ids[static_cast<size_t>(i)]);
    counts.tokens += tokens;
    if (i >= first && i < last.first + last.count) counts.own += tokens;
  }
  counts.loss_denominator =
      job.engine.objective->separates() == model::Objective::Separates::tokens ? counts.own : last.first + last.count - first;
  const int64_t shares = job.data_ranks * job.plan.islands;
  counts.max_local_samples = (count + shares - 1) / shares;
  return counts;
}

StepOutput run_step(Job& job, const StepInput& on_host) {
  const SyncCheck check(job.settings.log.sync_check && job.device.is_cuda());
  const mesh::Batch batch = mesh::to_device(on_host.batch, job.device);
  StepInput input{.step = on_host.step,
                  .batch = batch,
                  .tokens = on_host.tokens,
                  .loss_denominator = on_host.loss_denominator,
                  .learning_rate = on_host.learning_rate,
                  .update = on_host.step - job.updates_skipped,
                  .max_local_samples = on_host.max_local_samples};
  input.ahead = [&](int64_t steps) {
    const Counts counts = counts_of(job, input.step + steps);
    return BatchShare{mesh::to_device(make_batch(job, input.step + steps), job.device), counts.loss_denominator, counts.max_local_samples};
  };
  if (job.bad_steps->before_update())
    input.approve = [&](const at::Tensor& loss_sum, const at::Tensor& norm) {
      return job.bad_steps->approve(input.loss_denominator, loss_sum, norm);
    };
  if (job.kernel_report) job.kernel_report->before_step();
  StepOutput output = job.step->run(job.engine, input);
  if (job.kernel_report) job.kernel_report->after_step();
  return output;
}

}  // namespace

std::vector<int64_t> batch_ids(const Job& job, int64_t step) { return job.sampler->ids(step - 1 + job.batches_passed); }

TakenStep take_step(Job& job) {
  const int64_t step = job.steps_done + 1;
  const Counts counts = counts_of(job, step);
  TakenStep taken{.batch = step - 1 + job.batches_passed,
                  .samples = base::checksum(std::as_bytes(std::span(counts.ids))),
                  .tokens = counts.tokens,
                  .loss_denominator = counts.loss_denominator};
  taken.learning_rate = job.schedule.learning_rate(job.sampler->progress(step));
  const mesh::Batch waiting = job.loader->next();
  taken.output = run_step(job, {.step = step,
                                .batch = waiting,
                                .tokens = counts.own,
                                .loss_denominator = taken.loss_denominator,
                                .learning_rate = taken.learning_rate,
                                .max_local_samples = counts.max_local_samples});
  return taken;
}

void skip_step(Job& job) {
  const int64_t step = job.steps_done + 1;
  (void)job.loader->next();
  job.engine.sync->after_step({.step = step, .skipped = true}).wait();
  job.updates_skipped += 1;
}

}  // namespace cairn::train
