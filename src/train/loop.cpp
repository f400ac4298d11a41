// The training loop.
#include <ranges>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/flight/recorder.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/build/resume_from.h"
#include "train/evaluate.h"
#include "train/islands/track_merge.h"
#include "train/offload/offload_metrics.h"
#include "train/precise_norm.h"
#include "train/report/adapter_pools.h"
#include "train/report/run_recorder.h"
#include "train/sample_feedback.h"
#include "train/shape_times.h"
#include "train/state/finite.h"
#include "train/state/memory_snapshot.h"
#include "train/state/rewind.h"
#include "train/state/snapshot_writer.h"
#include "train/supernet/calibrate.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::train {
namespace {

bool due(int64_t step, int64_t every, int64_t last) { return step == last || (every > 0 && step % every == 0); }

// The numbers of the sync rules, the step and the saves, for the metrics. `more` are added.
sync::StepMetrics metrics_of(Job& job, const sync::StepMetrics& more, SnapshotWriter& snapshots) {
  sync::StepMetrics metrics = job.engine.sync->metrics();
  for (auto& one : snapshots.take_metrics()) metrics.push_back(std::move(one));
  if (mesh::TensorSwapper* const swapper = job.engine.store->swapper())
    for (auto& one : offload_metrics(*swapper)) metrics.push_back(std::move(one));
  metrics.insert(metrics.end(), more.begin(), more.end());
  for (auto& one : job.step->metrics()) metrics.push_back(std::move(one));
  for (const auto& part : job.between_steps)
    for (auto& one : part->metrics()) metrics.push_back(std::move(one));
  return metrics;
}

sync::StepMetrics with_decisions(sync::StepMetrics metrics, const TakenStep& taken) {
  metrics.insert(metrics.end(), taken.plan_metrics.begin(), taken.plan_metrics.end());
  metrics.insert(metrics.end(), taken.sampler_metrics.begin(), taken.sampler_metrics.end());
  return metrics;
}

// What is known of the step that was taken last, without metrics and saves.
StepRecord record_of(const Job& job, const TakenStep& taken) {
  return {.step = job.progress.steps_done,
          .tokens = taken.tokens,
          .loss_denominator = taken.loss_denominator,
          .positions = taken.positions,
          .flops = taken.flops,
          .tokens_done = job.progress.tokens_done,
          .batch = taken.batch,
          .samples = taken.samples,
          .learning_rate = taken.learning_rate,
          .data_wait_s = taken.data_wait_s,
          .plan = job.config.writes && taken.plan ? parallel::to_json(*taken.plan) : "",
          .fault = taken.output.skipped ? job.bad_steps->fault() : ""};
}

void log_lines(comm::World& world, std::string_view text) {
  for (const auto line : std::views::split(text, '\n'))
    if (!line.empty()) world.log().info("{}", std::string_view(line.begin(), line.end()));
}

// Handles a bad step whose update was skipped. Returns true if the run was rolled back to the state in `rewind`; then the step does not
// count. All ranks decide the same.
bool roll_back(comm::World& world, Job& job, const Rewind& rewind, RunRecorder& recorder, int64_t step) {
  if (job.config.settings.train.on_bad_step == OnBadStep::skip) {
    job.bad_steps->skipped(step);
    ++job.progress.updates_skipped;
    if (world.rank() == 0) world.log().warn("step {}: {}: its update is skipped", step, job.bad_steps->fault());
    return false;
  }
  job.bad_steps->may_roll_back(step, job.progress.rollbacks);
  stop_loader(job);  // its thread reads what changes below
  rewind.back(job, step);
  start_loader(job);
  recorder.rolled_back();
  if (world.rank() == 0)
    world.log().warn("step {}: {}: back to step {}, and on with the samples after it", step, job.bad_steps->fault(),
                     job.progress.steps_done);
  return true;
}

// Building may wait for data, ranks and other islands: a stop ends that too.
std::unique_ptr<Job> build_unless_stopped(comm::World& world, base::Recipe recipe, Start start, const data::Subset& subset,
                                          const base::Stop& stop) {
  if (!start.stop) start.stop = &stop;
  try {
    return build(world, std::move(recipe), start, subset);
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::cancelled || !is_stop_before_first_step(error, stop)) throw;
    throw Error(Error::Kind::cancelled, error.sentence()).with(kBeforeFirstStep);
  }
}

// What is saved comes from good steps: the numbers of all steps so far are judged first (a GPU's arrive later), and then the parameters.
void check_before_save(Job& job, RunRecorder& recorder) {
  recorder.settle();
  flush_sample_losses(job);
  job.bad_steps->parameters_must_be_finite(job.progress.steps_done,
                                           first_not_finite(job.engine.trained.values, job.engine.store->swapper()));
}

// Islands that step separately stop after the same step. This island requests it; all stop when a round of the sync rule has decided so.
bool stop_together(comm::World& world, sync::Sync& sync, bool wanted, bool& requested) {
  if (wanted && !std::exchange(requested, true)) {
    sync.request_stop();
    if (world.rank() == 0 && !sync.should_stop()) world.log().info("stopping, together with the other islands: after the next round");
  }
  return sync.should_stop();
}

// This island was left out by the others and goes on with their state, at their step.
void move_to(comm::World& world, Job& job, RunRecorder& recorder, int64_t step) {
  stop_loader(job);  // its thread reads what changes below
  const int64_t before = std::exchange(job.progress.steps_done, step);
  start_loader(job);
  recorder.rolled_back();
  if (world.rank() == 0) world.log().warn("step {}: goes on with the other islands after their step {}", before + 1, step);
}

}  // namespace

bool is_stop_before_first_step(const Error& error, const base::Stop& stop) {
  if (error.kind() == Error::Kind::cancelled) return true;
  const bool said_so = error.sentence().find(kBeforeFirstStep) != std::string::npos;  // the words of the rank that left
  if (error.kind() == Error::Kind::lost_peer) return stop.requested() || said_so;
  return stop.requested() && error.sentence().starts_with("stopped");
}

Result run(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset, const base::Stop& stop,
           const RunHooks& hooks) {
  const std::unique_ptr<Job> job = build_unless_stopped(world, std::move(recipe), start, subset, stop);  // model, data, optimizer, sync
  if (hooks.at_begin && job->progress.steps_done == 0) hooks.at_begin(*job);
  const std::unique_ptr<snapshot::RunLock> island_lock = hold_island_directory(*job, start);
  SnapshotWriter snapshots(*job, world.log(), world.wall(), base::real_disk());
  RunRecorder recorder(world, *job, start);  // metrics, progress, report
  const Settings& s = job->config.settings;
  RunProgress& progress = job->progress;
  const bool separately = parallel::islands_step_separately(job->config.plan);
  const bool rewinds = s.train.on_bad_step == OnBadStep::rollback;
  comm::FlightRecorder* const flight = job->instruments.flight;
  ShapeTimes shape_times;
  if (world.rank() == 0 && progress.steps_done == 0) log_lines(world, job->sampler->schedule_text());
  if (world.rank() == 0 && progress.steps_done == 0) log_lines(world, pools_text(*job));
  Rewind rewind;
  if (rewinds) rewind.keep(*job);

  bool stopped = false, stop_requested = false;
  while (progress.steps_done < last_step(*job) && !stopped) {
    snapshots.notice_failure();
    const int64_t step = progress.steps_done + 1;
    const auto traced = job->instruments.trace->span("step", "step");
    int64_t last = last_step(*job);
    const bool must_record = due(step, s.eval.every, last) || due(step, s.snapshot.every, last);
    if (!job->engine.sync->should_step(step) && !must_record) {  // this island is slower than others
      skip_step(*job);
      progress.steps_done = step;
      stopped = job->engine.sync->should_stop();  // a round may have ended in it
      if (stopped) check_before_save(*job, recorder);
      if (stopped) snapshots.save(/*last=*/true);
      continue;
    }
    const std::chrono::nanoseconds begun = world.wall().now();
    const TakenStep taken = take_step(*job);  // batch, forward, backward, update
    shape_times.add(taken.shape, taken.loss_denominator, base::seconds(world.wall().now() - begun), taken.data_wait_s);
    if (taken.output.skipped && roll_back(world, *job, rewind, recorder, step)) continue;
    progress.steps_done = step;
    progress.tokens_done += taken.tokens;
    last = last_step(*job);  // the sampler may have decided another epoch

    const sync::StepMetrics merge = with_decisions(track_merge(world, *job, recorder), taken);
    if (step == last) job->engine.sync->finish();
    if (const auto position = job->engine.sync->take_new_position()) {
      move_to(world, *job, recorder, *position);
      if (*position < last) continue;
    }
    const int64_t done = progress.steps_done;
    const bool evaluates = (due(done, s.eval.every, last) || job->sampler->evaluates_after(taken.batch + 1)) && held_out_samples(*job) > 0;
    StepRecord facts = record_of(*job, taken);
    facts.snapshot_s = snapshots.take_held_up_s() + (start.keeper ? start.keeper->take_held_up_s() : 0);
    facts.evaluated = evaluates;
    facts.metrics = metrics_of(*job, merge, snapshots);
    stopped = recorder.step(facts, taken.output, stop.requested());
    if (separately) stopped = stop_together(world, *job->engine.sync, stopped, stop_requested);

    if (evaluates) compute_precise_norms(*job);  // before the save, so that a resumed run has them too
    const bool wanted = done < last || s.snapshot.last;
    const bool save_now = stopped || (wanted && due(done, s.snapshot.every, last));
    if (save_now) check_before_save(*job, recorder);
    if (save_now && rewinds) rewind.keep(*job);
    if (save_now) snapshots.save(/*last=*/stopped || done == last);  // before the evaluation, which may be long or fail
    if (start.keeper && !stopped && done < last && due(done, s.memory_snapshot.every, last)) {
      flush_sample_losses(*job);
      start.keeper->save(*job, world);
    }
    if (evaluates) {
      recorder.settle();
      HeldOut found = evaluate_held_out(*job, [&](double share) { recorder.evaluating(share); });
      evaluate_subnets(*job, found);
      measure_pools(*job, found);
      recorder.held_out(found);
    }
    if (save_now || evaluates) recorder.after_pause();
  }
  if (world.rank() == 0) log_lines(world, shape_times.table());
  for (const auto& one : job->between_steps)
    if (world.rank() == 0) log_lines(world, one->summary());
  if (flight) flight->set_activity(comm::Activity::saving);
  snapshots.finish();
  recorder.finish(stopped);
  snapshots.rethrow_failure();
  for (const std::string& why : {job->engine.sync->interruption(), job->engine.sync->apart()})
    if (!why.empty()) throw Error(Error::Kind::lost_peer, why);
  if (hooks.at_end && !stopped) hooks.at_end(*job);
  if (!stopped) job->engine.sync->leave();
  if (flight) flight->set_activity(comm::Activity::ended);
  return recorder.result();
}

}  // namespace cairn::train
