#include "train/build.h"

#include <utility>

#include <ATen/Parallel.h>

#include "base/clock.h"
#include "comm/world.h"
#include "model/trainable.h"
#include "train/build/batches.h"
#include "train/build/build_steps.h"
#include "train/diagnosis/describe_rank.h"
#include "train/state/restore.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

// An island that joins a run in progress continues at the step of the others. The steps that it missed count as skipped updates.
void begin(Job& job, const Start& start) {
  job.progress.steps_done =
      job.step->begin(job.engine, {.steps_done = job.progress.steps_done, .resume = start.resume, .step_last = start.resume_step_last});
  const int64_t begun = job.engine.sync->begin(job.progress.steps_done);
  job.progress.updates_skipped += begun - job.progress.steps_done;
  job.progress.steps_done = begun;
}

}  // namespace

std::unique_ptr<Job> build(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset) {
  at::set_num_threads(start.threads);
  auto job = std::make_unique<Job>();
  job->passage_scores = start.passage_scores;
  job->engine.trained.barrier = &job->barrier;
  double since = base::seconds(world.wall().now());
  const auto took = [&](const char* part) {
    const double now = base::seconds(world.wall().now());
    job->instruments.startup.emplace_back(part, now - std::exchange(since, now));
  };

  read_recipe(*job, world, std::move(recipe), start);
  took("device");
  lay_out(*job, world, start);
  ResumedFrom resumed = find_resumed(*job, world, start);  // before the data: a damaged snapshot is reported at once
  const auto opened = std::make_shared<const std::optional<snapshot::Pretrained>>(open_inputs(*job, world, start));
  const std::optional<snapshot::Pretrained>& pretrained = *opened;
  took("data");

  build_model(*job, world, pretrained);
  cluster_queries(*job, world, start);
  build_sampler(*job, subset);
  const StepNeeds& needs = step_method(job->config.settings).needs;
  const std::vector<bool> trained = model::trainable(*job->engine.model, job->config.settings.model.train);
  place_parameters(*job, world, start, needs.gradients ? trained : std::vector<bool>(trained.size(), false));
  build_optimizer(*job, world);
  build_sync(*job, world, start);
  build_step_plans(*job, world);
  if (!resumed || needs.reference) start_weights(*job, pretrained, world);  // a reference model is made from the initial weights
  build_step(*job, world, trained, [&job = *job, &world, opened] { start_weights(job, *opened, world); });
  job->between_steps = make_between_steps(*job, world);
  restore_newest(*job, world, start, std::move(resumed), [&] { start_weights(*job, pretrained, world); });
  describe_rank(*job, world);
  begin(*job, start);
  plan_by_measured_costs(*job, world);
  start_loader(*job);
  took("model");
  return job;
}

}  // namespace cairn::train
