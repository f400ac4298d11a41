// The training loop.
#include <limits>

#include "base/disk.h"
#include "base/stop.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/record.h"
#include "train/restore.h"
#include "train/train.h"

namespace cairn::train {
namespace {

bool due(int64_t step, int64_t every, int64_t last) { return step == last || (every > 0 && step % every == 0); }

// Targets counted in the global batch of a step: every rank can tell, since the order of samples is defined globally.
int64_t tokens_of(const Job& job, int64_t step) {
  int64_t tokens = 0;
  for (int64_t id : job.sampler->ids(step - 1)) tokens += job.data.samples->tokens_in(id);
  return tokens;
}

// One rank writes; the others wait for it, so that no rank runs ahead of what is on disk.
void save_snapshot(comm::World& world, Job& job, const Start& start) {
  if (start.out.empty()) return;
  const auto traced = job.trace->span("save", "snapshot");
  if (job.writes) save(job, start.out.string(), base::real_disk());
  world.everyone().barrier("snapshot").wait_host();
}

}  // namespace

Result run(comm::World& world, base::Recipe recipe, const Start& start, const base::Stop& stop) {
  const std::unique_ptr<Job> job = build(world, std::move(recipe), start);  // model, data, optimizer, sync
  Record record(world, *job, start);                                        // metrics, progress, report
  const int64_t last = job->settings.train.steps;

  bool stopped = false;
  while (job->steps_done < last && !stopped) {
    const int64_t step = job->steps_done + 1, tokens = tokens_of(*job, step);
    const auto traced = job->trace->span("step", "step");
    const mesh::Batch batch = mesh::to_device(job->loader->next(), job->device);
    const double learning_rate = job->schedule.learning_rate(job->sampler->progress(step));
    const StepOutput output = job->step->run(job->engine, {.step = step, .batch = batch, .tokens = tokens, .learning_rate = learning_rate});
    job->steps_done = step;
    job->tokens_done += tokens;

    double held_out = std::numeric_limits<double>::quiet_NaN();
    if (due(step, job->settings.eval.every, last)) held_out = held_out_loss(*job);
    stopped = record.step({.step = step, .tokens = tokens, .tokens_done = job->tokens_done, .learning_rate = learning_rate, .held_out_loss = held_out}, output, stop.requested());
    if (stopped || due(step, job->settings.snapshot.every, last)) save_snapshot(world, *job, start);
  }
  job->engine.sync->finish();
  record.finish(stopped);
  return record.result();
}

}  // namespace cairn::train
