// The training loop.
#include <limits>

#include "base/disk.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/record.h"
#include "train/restore.h"
#include "train/rewind.h"
#include "train/sync_check.h"
#include "train/train.h"

namespace cairn::train {
namespace {

bool due(int64_t step, int64_t every, int64_t last) { return step == last || (every > 0 && step % every == 0); }

// Targets counted in the global batch of a step: every rank can tell, since the order of samples is defined globally.
int64_t tokens_of(const Job& job, int64_t step) {
  int64_t tokens = 0;
  for (int64_t id : job.sampler->ids(step - 1 + job.batches_passed)) tokens += job.data.samples->tokens_in(id);
  return tokens;
}

// Everything that a step does on the device, from the copy of its batch to the update.
StepOutput run_step(Job& job, const StepInput& on_host) {
  const SyncCheck check(job.settings.log.sync_check && job.device.is_cuda());
  const mesh::Batch batch = mesh::to_device(on_host.batch, job.device);
  StepInput input{.step = on_host.step,
                  .batch = batch,
                  .tokens = on_host.tokens,
                  .learning_rate = on_host.learning_rate,
                  .update = on_host.step - job.updates_skipped};
  if (job.bad_steps->before_update())
    input.approve = [&](const at::Tensor& loss_sum, const at::Tensor& norm) {
      return job.bad_steps->approve(input.tokens, loss_sum, norm);
    };
  return job.step->run(job.engine, input);
}

// One rank writes; the others wait for it, so that no rank runs ahead of what is on disk.
void save_snapshot(comm::World& world, Job& job, const Start& start) {
  if (start.out.empty()) return;
  const auto traced = job.trace->span("save", "snapshot");
  if (job.writes) save(job, start.out.string(), base::real_disk());
  world.everyone().barrier("snapshot").wait_host();
}

// A bad step whose update did not happen. True: the run has gone back to where `rewind` was kept, and the step is forgotten.
bool gone_back(comm::World& world, Job& job, const Rewind& rewind, Record& record, int64_t step) {
  if (job.settings.train.on_bad_step == "skip") {
    job.bad_steps->skipped(step);
    ++job.updates_skipped;
    if (world.rank() == 0) world.log().warn("step {}: {}: its update is skipped", step, job.bad_steps->fault());  // alike on all
    return false;
  }
  job.bad_steps->may_roll_back(step, job.rollbacks);
  job.loader.reset();  // before what it reads changes
  rewind.back(job, step);
  start_loader(job);
  record.rolled_back();
  if (world.rank() == 0)
    world.log().warn("step {}: {}: back to step {}, and on with the samples after it", step, job.bad_steps->fault(), job.steps_done);
  return true;
}

}  // namespace

Result run(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset, const base::Stop& stop) {
  const std::unique_ptr<Job> job = build(world, std::move(recipe), start, subset);  // model, data, optimizer, sync
  Record record(world, *job, start);                                                // metrics, progress, report
  const int64_t last = job->settings.train.steps;
  const bool rewinds = job->settings.train.on_bad_step == "rollback";
  Rewind rewind;
  if (rewinds) rewind.keep(*job);

  bool stopped = false;
  while (job->steps_done < last && !stopped) {
    const int64_t step = job->steps_done + 1, tokens = tokens_of(*job, step);
    const auto traced = job->trace->span("step", "step");
    const mesh::Batch waiting = job->loader->next();
    const double learning_rate = job->schedule.learning_rate(job->sampler->progress(step));
    const StepOutput output = run_step(*job, {.step = step, .batch = waiting, .tokens = tokens, .learning_rate = learning_rate});
    if (output.skipped && gone_back(world, *job, rewind, record, step)) continue;
    job->steps_done = step;
    job->tokens_done += tokens;

    double held_out = std::numeric_limits<double>::quiet_NaN();
    if (due(step, job->settings.eval.every, last)) held_out = held_out_loss(*job);
    stopped = record.step({.step = step,
                           .tokens = tokens,
                           .tokens_done = job->tokens_done,
                           .learning_rate = learning_rate,
                           .held_out_loss = held_out,
                           .fault = output.skipped ? job->bad_steps->fault() : ""},
                          output, stop.requested());
    const bool save_now = stopped || due(step, job->settings.snapshot.every, last);
    if (save_now && rewinds) rewind.keep(*job);
    if (save_now) save_snapshot(world, *job, start);
  }
  job->engine.sync->finish();
  record.finish(stopped);
  return record.result();
}

}  // namespace cairn::train
