// Collecting and restoring snapshots.
#include "train/state/restore.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "comm/group.h"
#include "model/classifier/batch_norm.h"
#include "model/saved_buffers.h"
#include "optim/active_optimizer.h"
#include "snapshot/snapshot.h"
#include "train/active_parts.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/experts/move_experts.h"
#include "train/model_from.h"
#include "train/report/run_json.h"
#include "train/state/finite.h"
#include "train/state/full_state.h"
#include "train/state/part_load.h"

namespace cairn::train {

namespace {

// The index of the next sample in the sampler's order, from 0.
int64_t next_sample(const Job& job) {
  return (job.progress.steps_done + job.progress.batches_passed) * job.config.settings.train.global_batch;
}

// The section of the state that only this rank has (Step::rank_state).
std::string step_section(size_t rank) { return fmt::format("step.rank-{}", rank); }

// A list of state tensors, and where it goes.
struct SavedSection {
  std::string name;
  bool shared = false;  // one file that all ranks write; else pieces in the ranks' own files
  std::vector<StateTensor> tensors;
};

std::vector<SavedSection> saved_sections(Job& job) {
  std::vector<SavedSection> sections;
  for (const char* name : kParameterSections) sections.push_back({name, true, {}});
  for (StateTensor& one : model_state(job)) sections[static_cast<size_t>(section_of(job, one))].tensors.push_back(std::move(one));
  sections.push_back({"optimizer", false, optimizer_state(job)});
  sections.push_back({"live", false, live_state(job)});
  sections.push_back({"sync_elements", false, sync_state(job, job.progress.steps_done)});
  std::erase_if(sections, [](const SavedSection& one) { return one.tensors.empty() && one.name != "model" && one.name != "optimizer"; });
  return sections;
}

// The elements of a tensor that this rank writes. `mine` begins at `held.begin` of the local tensor.
at::Tensor elements_of(const StateTensor& tensor, const mesh::Fragment& share) {
  const int64_t begin = tensor.by_element ? tensor.elements.begin : 0;
  return tensor.mine.detach().contiguous().view({-1}).narrow(0, share.elements.begin - begin, share.elements.length());
}

snapshot::Contents rest_of(Job& job) {
  snapshot::Contents contents{.step = job.progress.steps_done, .tensors = {}, .texts = job.carried, .version = base::version()};
  const auto add = [&](const char* section, mesh::NamedTensors tensors) {
    if (!tensors.empty()) contents.tensors[section] = std::move(tensors);
  };
  add("step", job.step->state());
  add("sync", job.engine.sync->state());
  add("sampler", job.sampler->state());
  add("buffers", model::running_buffers(job.engine.buffers));
  add("masks", model::mask_buffers(job.engine.buffers));
  add("bad_steps", job.bad_steps->state());
  add("active", job.engine.active->set().state());
  mesh::NamedTensors between_steps;
  for (const auto& one : job.between_steps)
    for (mesh::NamedTensor& tensor : one->state()) between_steps.push_back(std::move(tensor));
  add("between_steps", std::move(between_steps));
  if (job.engine.owned.copies) add("experts", job.engine.owned.copies->state());
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
                                                           .masks = job.masks,
                                                           .updates_skipped = job.progress.updates_skipped,
                                                           .rollbacks = job.progress.rollbacks,
                                                           .batches_passed = job.progress.batches_passed,
                                                           .next_sample = next_sample(job),
                                                           .apart = !job.engine.sync->apart().empty(),
                                                           .round_unfinished = job.engine.sync->round_unfinished()});
  return contents;
}

}  // namespace

RankSnapshot collect_of(Job& job, int rank) {
  const bool here = rank == job.engine.step_group->rank();
  RankSnapshot saved;
  saved.part.rank = rank;
  saved.part.writes_headers = rank == 0;
  const std::vector<SavedSection> sections = saved_sections(job);
  std::vector<parallel::StateMap::Tensor> tensors;
  for (const SavedSection& section : sections)
    for (const StateTensor& one : section.tensors) {
      const auto element = static_cast<int64_t>(c10::elementSize(one.dtype));
      tensors.push_back({one.parameter, one.by_element, element, one.shape});
      saved.bytes += c10::multiply_integers(one.shape) * element;
    }
  const std::vector<std::vector<parallel::StateMap::Holding>> shares = job.state_map->divide(tensors);
  size_t next = 0;
  for (const SavedSection& section : sections) {
    snapshot::SharedSection* const shared = section.shared ? &saved.part.shared[section.name] : nullptr;
    for (size_t i = 0; i < section.tensors.size(); ++i, ++next) {
      const StateTensor& one = section.tensors[i];
      if (shared) shared->tensors.push_back({.name = one.name, .dtype = snapshot::dtype_of(one.dtype), .shape = one.shape});
      for (const parallel::StateMap::Holding& share : shares[next]) {
        if (share.rank != rank) continue;
        CAIRN_CHECK(!here || (one.mine.defined() && one.mine.scalar_type() == one.dtype), "{}: this rank has no such part of it", one.name);
        at::Tensor data = here ? elements_of(one, share.fragment)
                               : at::empty({share.fragment.elements.length()}, at::TensorOptions().dtype(one.dtype).device(at::kMeta));
        if (shared)
          shared->parts.push_back({i, share.fragment, std::move(data)});
        else
          saved.part.own.push_back({section.name, one.name, one.shape, share.fragment, std::move(data)});
      }
    }
  }
  const mesh::NamedTensors of_rank = job.step->rank_state();
  if (!here && !of_rank.empty())
    base::fail_input("train.method = {}: each rank has state of its own: all ranks must see the run directory",
                     job.config.settings.train.method);
  for (const mesh::NamedTensor& one : of_rank) {
    const auto whole = [&] {
      mesh::Fragment fragment;
      for (const int64_t size : one.tensor.sizes()) fragment.local_shard.dims.push_back({{0, size}});
      fragment.elements = {0, one.tensor.numel()};
      return fragment;
    };
    saved.part.own.push_back({step_section(static_cast<size_t>(rank)), one.name, one.tensor.sizes().vec(), whole(),
                              one.tensor.detach().contiguous().view({-1})});
    saved.bytes += static_cast<int64_t>(one.tensor.nbytes()) * job.engine.step_group->size();
  }
  if (rank == 0 && here) saved.rest = rest_of(job);
  return saved;
}

RankSnapshot collect(Job& job) { return collect_of(job, job.engine.step_group->rank()); }

namespace {

// Returns the damage. Adds to `books` what was loaded and read.
std::string load_sections(Job& job, const snapshot::OpenSnapshot& found, std::vector<SectionToLoad> sections, LoadedTogether& books) {
  std::erase_if(sections, [](const SectionToLoad& one) { return one.into.empty(); });
  const auto model = found.manifest().files.find(snapshot::file_of_section("model"));
  const bool in_memory = std::ranges::any_of(kParameterSections, [&](const char* section) { return found.pieces().contains(section); });
  if (in_memory || (model != found.manifest().files.end() && !model->second.cells.empty())) {
    LoadedTogether loaded = load_together(job, found, sections);
    books.bytes += loaded.bytes;
    books.read += loaded.read;
    return std::move(loaded.damage);
  }
  for (const SectionToLoad& one : sections) load(job, found, one.section, one.into);  // one rank has written it
  return {};
}

// State that this job has no place for is not dropped in silence.
void check_nothing_left(const std::vector<SectionToLoad>& sections, const snapshot::OpenSnapshot& found, const Job& job) {
  for (const SectionToLoad& one : sections)
    if (one.into.empty() && found.has_section(one.section) && !found.entries(one.section).empty())
      base::fail_input(
          "{}: it has state of the section {}, which this recipe has no use for (optim.kind = {}): resume with the recipe "
          "that it was saved with, or start a new run from its model (model.from)",
          found.path(), one.section, job.config.settings.optim.kind);
}

// Restores the state of the sync rules, and this replica's own values if they differ from the global model. A snapshot of a run with
// another rule has no such state: replicas then start from its model.
std::string restore_sync(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, LoadedTogether& books) {
  sync::Sync& sync = *job.engine.sync;
  const std::vector<at::Tensor> global = sync.global_parameters();
  const mesh::NamedTensors state = sync.state();
  const std::vector<StateTensor> elements = sync_state(job, found.step());
  if (global.empty() && state.empty() && elements.empty()) return {};
  for (size_t i = 0; i < global.size(); ++i)
    job.engine.trained.values[i].tensor.copy_(global[i].view(job.engine.trained.values[i].tensor.sizes()));
  if ((!global.empty() && !found.has_section("live")) || (!state.empty() && !found.has_section("sync"))) {
    log.warn("{}: no state of sync.island.kind = {}: islands start from its model", found.path(), job.config.settings.island.kind);
    return {};
  }
  if (!state.empty()) found.load_into("sync", state);
  return load_sections(job, found, {{"live", live_state(job)}, {"sync_elements", elements}}, books);
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

// What was frozen, and how many updates each parameter has taken. A snapshot without it is of a run in which everything moved.
void restore_active(Job& job, const snapshot::OpenSnapshot& found) {
  optim::ActiveSet set = job.engine.active->set();
  if (found.has_section("active")) {
    mesh::NamedTensors saved;
    for (const snapshot::TensorEntry& one : found.entries("active")) saved.push_back({one.name, found.tensor("active", one.name)});
    set.restore(saved);
  }
  job.engine.active->replace_set(std::move(set));
  apply_active(job.engine);
}

void restore_between_steps(Job& job, const snapshot::OpenSnapshot& found) {
  mesh::NamedTensors state;
  for (const auto& one : job.between_steps)
    for (mesh::NamedTensor& tensor : one->state()) state.push_back(std::move(tensor));
  if (!state.empty() && found.has_section("between_steps")) found.load_into("between_steps", state);
}

// Loads of experts, and who has which: then they go where they were, so that sums have the same order. A snapshot without that, or of other
// ranks along ep, is continued with the homes and loads of a new run.
void restore_experts(Job& job, const snapshot::OpenSnapshot& found) {
  if (!job.engine.owned.copies || !found.has_section("experts")) return;
  mesh::NamedTensors saved;
  for (const snapshot::TensorEntry& one : found.entries("experts")) saved.push_back({one.name, found.tensor("experts", one.name)});
  const std::vector<mesh::Ragged> homes = job.engine.owned.copies->restore(saved);
  if (!homes.empty() && homes != job.engine.owned.copies->homes()) move_experts(job, job.engine.step_group->world(), homes);
}

// Another sampler would draw samples in an order that has nothing to do with the run's.
void restore_sampler(Job& job, const snapshot::OpenSnapshot& found) {
  const mesh::NamedTensors state = job.sampler->state();
  if (state.empty() == found.has_section("sampler"))
    base::fail_input(
        "data.sampler = {}: {} was trained with another sampler. Resume with that one, or start a new run from its model "
        "(model.from).",
        job.config.settings.data.sampler, found.path());
  if (state.empty()) return;
  found.load_into("sampler", state);
  job.sampler->restored();
}

}  // namespace

std::string restore(Job& job, base::Log& log, const snapshot::OpenSnapshot& found, const std::string& run_dir) {
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
        "data.kind, model.adapter and model.train must be unchanged",
        run_dir, job.config.settings.model.from.empty() ? "the model" : job.config.settings.model.from);
  if (job.masks != state.masks)
    base::fail_input(
        "{}: its masks are not those of model.from = {}: pruned weights would differ. Resume with the model that the run began with, and "
        "with model.sparse unchanged.",
        run_dir, job.config.settings.model.from);
  std::vector<SectionToLoad> sections;
  for (const char* name : kParameterSections) sections.push_back({name, {}});
  for (StateTensor& one : model_state(job)) sections[static_cast<size_t>(section_of(job, one))].into.push_back(std::move(one));
  sections.push_back({"optimizer", optimizer_state(job)});
  check_nothing_left(sections, found, job);
  LoadedTogether books;
  const std::chrono::nanoseconds began = job.instruments.wall->now();
  if (std::string damage = load_sections(job, found, std::move(sections), books); !damage.empty()) return damage;
  if (const mesh::NamedTensors running = model::running_buffers(job.engine.buffers); !running.empty()) found.load_into("buffers", running);
  if (const mesh::NamedTensors masks = model::mask_buffers(job.engine.buffers); !masks.empty()) found.load_into("masks", masks);
  if (std::string damage = restore_sync(job, log, found, books); !damage.empty()) return damage;
  restore_step(job, log, found);
  restore_active(job, found);
  restore_between_steps(job, found);
  if (const std::string name = first_not_finite(job.engine.trained.values, job.engine.store->swapper()); !name.empty())
    base::fail_corrupt(found.path(),
                       fmt::format("{} has values that are not finite: the run had diverged when it saved this snapshot. Delete "
                                   "the folder to resume from the snapshot before it",
                                   name));
  job.engine.store->updated();
  restore_experts(job, found);
  restore_sampler(job, found);
  // Without train.spike_factor the earlier run has saved no history.
  if (mesh::NamedTensors kept = job.bad_steps->state(); !kept.empty() && found.has_section("bad_steps")) found.load_into("bad_steps", kept);
  job.progress.steps_done = found.step();
  job.progress.tokens_done = state.tokens;
  job.progress.seconds_done = state.seconds;
  job.progress.updates_skipped = state.updates_skipped;
  job.progress.rollbacks = state.rollbacks;
  job.progress.batches_passed = state.batches_passed;
  if (job.config.settings.train.epochs > 0 && job.progress.steps_done > last_step(job))
    base::fail_input("train.epochs = {}: {} is already at step {}, beyond their end. Raise train.epochs, or start a new run.",
                     job.config.settings.train.epochs, run_dir, job.progress.steps_done);
  log.info("resumed {} at step {}: the next sample is number {}", run_dir, job.progress.steps_done, next_sample(job));
  if (books.bytes > 0)
    log.info("{} bytes of state for {}: {} bytes read by all of them together, {:.3f} s", books.bytes,
             base::plural(job.engine.step_group->size(), "rank"), books.read, base::seconds(job.instruments.wall->now() - began));
  return {};
}

}  // namespace cairn::train
