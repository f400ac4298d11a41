// Collecting and restoring snapshots.
#include "train/state/restore.h"

#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/version.h"
#include "comm/group.h"
#include "model/classifier/batch_norm.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/model_from.h"
#include "train/report/run_json.h"
#include "train/state/finite.h"
#include "train/state/full_state.h"

namespace cairn::train {

namespace {

// The index of the next sample in the sampler's order, from 0.
int64_t next_sample(const Job& job) {
  return (job.progress.steps_done + job.progress.batches_passed) * job.config.settings.train.global_batch;
}

// The section of the state that only this rank has (Step::rank_state).
std::string step_section(size_t rank) { return fmt::format("step.rank-{}", rank); }

}  // namespace

std::optional<snapshot::Contents> collect(Job& job) {
  snapshot::Contents contents{.step = job.progress.steps_done, .tensors = {}, .texts = {}, .version = base::version()};
  const Split parameters = split_adapters(gather_whole(job, model_state(job)));
  contents.tensors["optimizer"] = gather_whole(job, optimizer_state(job));
  mesh::NamedTensors live = gather_whole(job, live_state(job)), kept = gather_whole(job, sync_state(job, job.progress.steps_done));
  const std::vector<mesh::NamedTensors> by_rank = gather_ranks(job, job.step->rank_state());
  if (job.engine.step_group->rank() != 0) return std::nullopt;
  if (mesh::NamedTensors state = job.step->state(); !state.empty()) contents.tensors["step"] = std::move(state);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) contents.tensors[step_section(rank)] = by_rank[rank];
  if (!live.empty()) contents.tensors["live"] = std::move(live);
  if (!kept.empty()) contents.tensors["sync_elements"] = std::move(kept);
  contents.tensors["model"] = parameters.own;
  if (mesh::NamedTensors state = job.engine.sync->state(); !state.empty()) contents.tensors["sync"] = std::move(state);
  if (mesh::NamedTensors state = job.sampler->state(); !state.empty()) contents.tensors["sampler"] = std::move(state);
  if (mesh::NamedTensors running = model::running_buffers(job.engine.buffers); !running.empty())
    contents.tensors["buffers"] = std::move(running);
  contents.texts = job.carried;
  if (!parameters.adapters.empty()) contents.tensors["adapter"] = parameters.adapters;
  if (mesh::NamedTensors state = job.bad_steps->state(); !state.empty()) contents.tensors["bad_steps"] = std::move(state);
  if (std::string config = job.engine.model->config_json(); !config.empty()) contents.texts["config.json"] = std::move(config);
  if (job.data.tokenizer && !job.carried.contains("tokenizer.json")) contents.texts["tokenizer.json"] = job.data.tokenizer->json();
  contents.texts["training/recipe.toml"] = job.config.recipe_toml;
  contents.texts["training/plan.json"] = parallel::to_json(job.config.plan);
  contents.texts["training/state.json"] = to_json(RunState{.step = job.progress.steps_done,
                                                           .tokens = job.progress.tokens_done,
                                                           .seconds = job.progress.seconds_done,
                                                           .seed = job.config.settings.train.seed,
                                                           .subset = job.subset.hash(),
                                                           .reference = job.reference,
                                                           .updates_skipped = job.progress.updates_skipped,
                                                           .rollbacks = job.progress.rollbacks,
                                                           .batches_passed = job.progress.batches_passed,
                                                           .next_sample = next_sample(job),
                                                           .apart = !job.engine.sync->apart().empty(),
                                                           .round_unfinished = job.engine.sync->round_unfinished()});
  return contents;
}

namespace {

// Restores the state of the sync rules, and this replica's own values if they differ from the global model. A snapshot of a run with
// another rule has no such state: replicas then start from its model.
void restore_sync(Job& job, base::Log& log, const snapshot::OpenSnapshot& found) {
  sync::Sync& sync = *job.engine.sync;
  const std::vector<at::Tensor> global = sync.global_parameters();
  const mesh::NamedTensors state = sync.state();
  const std::vector<StateTensor> elements = sync_state(job, found.step());
  if (global.empty() && state.empty() && elements.empty()) return;
  for (size_t i = 0; i < global.size(); ++i)
    job.engine.trained.values[i].tensor.copy_(global[i].view(job.engine.trained.values[i].tensor.sizes()));
  if ((!global.empty() && !found.has_section("live")) || (!state.empty() && !found.has_section("sync"))) {
    log.warn("{}: no state of sync.island.kind = {}: islands start from its model", found.path(), job.config.settings.island.kind);
    return;
  }
  if (!global.empty()) load(job, found, "live", live_state(job));
  if (!elements.empty()) load(job, found, "sync_elements", elements);
  if (!state.empty()) found.load_into("sync", state);
}

// Restores the state of the step. A snapshot of a run with another method has no such state: the step starts from its model.
void restore_step(Job& job, base::Log& log, const snapshot::OpenSnapshot& found) {
  const mesh::NamedTensors state = job.step->state(), mine = job.step->rank_state();
  if (state.empty() && mine.empty()) return;
  if (!found.has_section("step")) {
    log.warn("{}: no state of train.method = {}: it starts from the model", found.path(), job.config.settings.train.method);
    return;
  }
  const auto ranks = static_cast<size_t>(job.engine.step_group->size());
  if (!mine.empty() && (!found.has_section(step_section(ranks - 1)) || found.has_section(step_section(ranks))))
    base::fail_input("{}: train.method = {}: each rank has state of its own, and {} ranks did not save it: resume on as many as before",
                     found.path(), job.config.settings.train.method, ranks);
  found.load_into("step", state);
  if (!mine.empty()) found.load_into(step_section(static_cast<size_t>(job.engine.step_group->rank())), mine);
}

}  // namespace

void restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir) {
  const RunState state = parse_run_state(found.text("training/state.json"), found.path() + "/training/state.json");
  if (state.step != found.step())
    base::fail_corrupt(found.path() + "/training/state.json", fmt::format("step {}, the snapshot is of step {}", state.step, found.step()));
  if (state.seed && *state.seed != job.config.settings.train.seed)
    base::fail_input(
        "train.seed = {} differs from the {} that {} was trained with: its samples would come in another order; resume with the same seed",
        job.config.settings.train.seed, *state.seed, run_dir);
  if (state.subset && *state.subset != job.subset.hash())
    base::fail_input("{}: the run was trained on other samples than those of this recipe: resume with the same data and subset", run_dir);
  if (job.reference && state.reference != job.reference)
    base::fail_input(
        "{}: its reference model is not the one that this recipe starts from: {} must have the weights that the run began with, and "
        "data.kind, model.lora and model.train must be unchanged",
        run_dir, job.config.settings.model.from.empty() ? "the model" : job.config.settings.model.from);
  std::vector<StateTensor> own, adapters;
  for (StateTensor& one : model_state(job)) (is_adapter(one.name) ? adapters : own).push_back(std::move(one));
  load(job, found, "model", own);
  if (!adapters.empty()) load(job, found, "adapter", adapters);
  load(job, found, "optimizer", optimizer_state(job));
  if (const mesh::NamedTensors running = model::running_buffers(job.engine.buffers); !running.empty()) found.load_into("buffers", running);
  restore_sync(job, log, found);
  restore_step(job, log, found);
  if (const std::string name = first_not_finite(job.engine.trained.values); !name.empty())
    base::fail_corrupt(found.path(),
                       fmt::format("{} has values that are not finite: the run had diverged when it saved this snapshot. Delete "
                                   "the folder to resume from the snapshot before it",
                                   name));
  job.engine.store->updated();
  if (mesh::NamedTensors kept = job.sampler->state(); !kept.empty()) found.load_into("sampler", kept);
  // Without train.spike_factor the earlier run has saved no history.
  if (mesh::NamedTensors kept = job.bad_steps->state(); !kept.empty() && found.has_section("bad_steps")) found.load_into("bad_steps", kept);
  job.progress.steps_done = found.step();
  job.progress.tokens_done = state.tokens;
  job.progress.seconds_done = state.seconds;
  job.progress.updates_skipped = state.updates_skipped;
  job.progress.rollbacks = state.rollbacks;
  job.progress.batches_passed = state.batches_passed;
  log.info("resumed {} at step {}: the next sample is number {}", run_dir, job.progress.steps_done, next_sample(job));
}

}  // namespace cairn::train
