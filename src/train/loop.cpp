// The training loop.
#include <utility>

#include "base/files/disk.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/report/run_recorder.h"
#include "train/state/rewind.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::train {
namespace {

bool due(int64_t step, int64_t every, int64_t last) { return step == last || (every > 0 && step % every == 0); }

sync::StepMetrics notes_of(Job& job) {
  sync::StepMetrics notes = job.engine.sync->metrics();
  for (auto& note : job.step->metrics()) notes.push_back(std::move(note));
  return notes;
}

// A bad step whose update did not happen. True: the run has gone back to where `rewind` was kept, and the step is forgotten.
bool roll_back(comm::World& world, Job& job, const Rewind& rewind, RunRecorder& record, int64_t step) {
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
  SnapshotWriter snapshots(*job, world.log(), world.wall(), base::real_disk());
  RunRecorder record(world, *job, start);  // metrics, progress, report
  const int64_t last = job->settings.train.steps;
  const bool rewinds = job->settings.train.on_bad_step == "rollback";
  const bool apart = parallel::islands_step_separately(job->plan);
  Rewind rewind;
  if (rewinds) rewind.keep(*job);

  bool stopped = false, asked = false;
  while (job->steps_done < last && !stopped) {
    snapshots.rethrow_failure();
    const int64_t step = job->steps_done + 1;
    const auto traced = job->trace->span("step", "step");
    const bool must_record = step == last || due(step, job->settings.eval.every, last) || due(step, job->settings.snapshot.every, last);
    if (!job->engine.sync->should_step(step) && !must_record) {  // this island is slower than others
      skip_step(*job);
      job->steps_done = step;
      stopped = job->engine.sync->should_stop();  // a round may have ended in it
      if (stopped) snapshots.save();
      continue;
    }
    const TakenStep taken = take_step(*job);  // batch, forward, backward, update
    if (taken.output.skipped && roll_back(world, *job, rewind, record, step)) continue;
    job->steps_done = step;
    job->tokens_done += taken.tokens;

    if (step == last) job->engine.sync->finish();
    HeldOut held_out;
    if (due(step, job->settings.eval.every, last)) held_out = evaluate_held_out(*job);
    stopped = record.step({.step = step,
                           .tokens = taken.tokens,
                           .loss_denominator = taken.loss_denominator,
                           .tokens_done = job->tokens_done,
                           .batch = taken.batch,
                           .samples = taken.samples,
                           .learning_rate = taken.learning_rate,
                           .snapshot_s = snapshots.take_held_up_s(),
                           .held_out = std::move(held_out),
                           .notes = notes_of(*job),
                           .fault = taken.output.skipped ? job->bad_steps->fault() : ""},
                          taken.output, stop.requested());
    if (apart) {  // the others must end after the same step
      if (stopped && !std::exchange(asked, true)) {
        job->engine.sync->request_stop();
        if (world.rank() == 0 && !job->engine.sync->should_stop())
          world.log().info("stopping, together with the other islands: after the next round");
      }
      stopped = job->engine.sync->should_stop();
    }
    const bool wanted = step < last || job->settings.snapshot.last;
    const bool save_now = stopped || (wanted && due(step, job->settings.snapshot.every, last));
    if (save_now && rewinds) rewind.keep(*job);
    if (save_now) snapshots.save();
  }
  snapshots.finish();
  record.finish(stopped);
  return record.result();
}

}  // namespace cairn::train
