#include "train/features.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "data/sampler.h"
#include "parallel/plan.h"
#include "parallel/state/parameter_store.h"
#include "sync/needs.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

constexpr Conflict kConflicts[] = {
    {Feature::loss_chunks, Feature::stage_recompute, "a recomputed stage makes the logits twice: use recompute.mode = full"},
    {Feature::frozen_cache, Feature::tp, "ranks along mesh.tp sum in every layer: leave it out, or use mesh.dp"},
    {Feature::frozen_cache, Feature::cp, "a rank has parts of sequences: leave it out, or use mesh.dp"},
    {Feature::frozen_cache, Feature::pp, "the leading layers lie on other ranks: leave it out, or use mesh.dp"},
    {Feature::frozen_cache, Feature::ep, "ranks along mesh.ep exchange tokens in every layer: leave it out, or use mesh.dp"},
    {Feature::fssdp, Feature::zero3, "a home that is sharded itself would be gathered for every copy: use memory.zero = 2"},
    {Feature::fssdp, Feature::check_every, "a step that is computed twice would plan other copies: leave one of the two out"},
    {Feature::reshard, Feature::rollback, "the state to go back to lies on other ranks: use expert.reshard_every = 0, or skip"},
    {Feature::reshard, Feature::local_steps, "islands exchange experts by where they lie: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::dp_rule, "the rule keeps state by where experts lie: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::pairs, "the reference model would stay where it is: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::rollouts, "the reference model would stay where it is: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::swapped_gradients, "experts move in memory: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::swapped_optimizer, "experts move in memory: use expert.reshard_every = 0"},
    {Feature::reshard, Feature::spectral, "factors are decomposed where they lie: use expert.reshard_every = 0"},
    {Feature::frozen_cache, Feature::zero3, "ranks gather the weights of every layer together: leave it out, or use memory.zero = 2"},
    {Feature::frozen_cache, Feature::stream, "layers go through a sequence in slices: leave it out, or use recompute.mode = full"},
    {Feature::frozen_cache, Feature::stage_recompute, "the whole stage is recomputed: leave it out, or use recompute.mode = full"},
    {Feature::frozen_cache, Feature::step_plans, "a pass has parts of sequences: leave it out, or use context.plan = fixed"},
    {Feature::frozen_cache, Feature::cuda_graph, "a captured step runs every layer: leave one of the two out"},
    {Feature::frozen_cache, Feature::fp8, "codes of a layer's inputs are made by the layer before: leave one of the two out"},
    {Feature::frozen_cache, Feature::dropout, "the outputs of a layer differ from step to step: leave one of the two out"},
    {Feature::frozen_cache, Feature::sync_check, "the host reads which samples a pass has: leave one of the two out"},
    {Feature::stream, Feature::fp8, "fp8 layers scale by the largest element of all tokens, not of a slice: use recompute.mode = full"},
    {Feature::stream, Feature::tensor_overlap, "every rank has all tokens of a slice, so nothing waits for tokens: leave the overlap out"},
    {Feature::cuda_graph, Feature::several_ranks, "is for one rank, because messages between ranks are not captured: leave it out"},
    {Feature::cuda_graph, Feature::host_sync, "the sync rule decides on the host what a step does: leave it out"},
    {Feature::cuda_graph, Feature::dropout, "a captured graph would drop the same elements in every pass: leave it out"},
    {Feature::spectral, Feature::fp8, "factors of unit length lose their directions in 8 bits: leave train.fp8 out"},
    {Feature::spectral, Feature::bf16_parameters, "decompositions need factors in fp32: leave train.parameters out"},
    {Feature::spectral, Feature::cuda_graph, "a captured update would keep its rates and counts: use train.cuda_graph = false"},
    {Feature::spectral, Feature::remote_islands, "islands of worlds of their own cannot share a decomposition: use mesh.island"},
    {Feature::check_every, Feature::cuda_graph, "compares steps that are not captured: use train.cuda_graph = false"},
    {Feature::check_every, Feature::sync_check, "waits for the device to compare, which log.sync_check = true forbids: drop one"},
    {Feature::bf16_gradients, Feature::several_ranks, "gradients are summed over ranks in fp32: leave it out, or use one rank"},
    {Feature::recovery, Feature::sync_check, "an update waits for the numbers of its step, which log.sync_check = true forbids: drop one"},
    {Feature::cp, Feature::step_plans, "the plan chooses the ranks of each sequence: use mesh.dp in its place"},
    {Feature::pp, Feature::step_plans, "stages would wait for passes of different lengths: use mesh.dp or mesh.tp instead"},
    {Feature::ep, Feature::step_plans, "ranks along mesh.ep exchange tokens in every pass: use mesh.dp instead"},
    {Feature::zero3, Feature::unequal_passes,
     "ranks run different numbers of passes, and gather weights in each: use context.plan = flexsp, or memory.zero = 2"},
    {Feature::cuda_graph, Feature::step_plans, "every pass has a shape of its own: leave it out"},
    {Feature::bf16_gradients, Feature::step_plans, "several passes are summed in fp32: leave it out"},
    {Feature::sample_losses, Feature::cuda_graph, "a captured step keeps no losses of single samples: use train.cuda_graph = false"},
    {Feature::sample_losses, Feature::step_plans, "steps under a plan keep no losses of single samples: use context.plan = fixed"},
    {Feature::sample_losses, Feature::local_steps,
     "islands that step separately would score samples by different models: use sync.island.kind = all_reduce, or data.sampler = rs2"},
    {Feature::whole_batch, Feature::local_steps,
     "an island would train on a part of a batch that was composed as a whole: use sync.island.kind = all_reduce"},
    {Feature::adapters_behind, Feature::tp, "they read sums of all ranks along mesh.tp: use adaptformer or lora, or mesh.dp"},
    {Feature::swapped_parameters, Feature::cuda_graph, "a captured step cannot wait for the disk: leave train.cuda_graph out"},
    {Feature::swapped_gradients, Feature::cuda_graph, "a captured step cannot wait for the disk: leave train.cuda_graph out"},
    {Feature::swapped_optimizer, Feature::cuda_graph, "a captured update cannot wait for the disk: leave train.cuda_graph out"},
    {Feature::swapped_parameters, Feature::zero1_or_2,
     "passes of ZeRO 1 and 2 read whole parameters in memory: use memory.zero = 3"},
    {Feature::swapped_gradients, Feature::replicas, "replicas sum their gradients in memory: use memory.zero = 3 over all of mesh.dp"},
    {Feature::swapped_gradients, Feature::pp, "a pipeline's gradients stay whole until its last micro-batch: use memory.optimizer instead"},
    {Feature::swapped_gradients, Feature::check_every, "checksums need all gradients at once: leave train.check_every out"},
    {Feature::swapped_gradients, Feature::bf16_gradients, "they are summed in fp32: leave train.gradients out"},
    {Feature::swapped_gradients, Feature::step_plans, "passes of a plan are summed in memory: use context.plan = fixed"},
    {Feature::swapped_gradients, Feature::dp_rule, "the rule reads gradients in memory: leave sync.dp.kind out"},
    {Feature::swapped_parameters, Feature::remote_islands, "islands exchange parameters from memory: use memory.optimizer alone"},
    {Feature::swapped_parameters, Feature::local_steps, "islands exchange parameters from memory: use memory.optimizer alone"},
    {Feature::swapped_parameters, Feature::dp_rule, "the rule reads parameters in memory: leave sync.dp.kind out"},
    {Feature::swapped_parameters, Feature::fssdp, "copies of experts are made from memory: use expert.placement = ep"},
    {Feature::swapped_parameters, Feature::frozen_cache, "leading layers run without their weights: leave one of the two out"},
    {Feature::swapped_parameters, Feature::spectral, "factors are rotated between steps, in memory: leave model.spectral out"},
    {Feature::swapped_optimizer, Feature::spectral, "moments are rotated between steps, in memory: leave model.spectral out"},
    {Feature::swapped_parameters, Feature::rollback, "the state to go back to is kept in memory: use train.on_bad_step = skip"},
    {Feature::swapped_optimizer, Feature::rollback, "the state to go back to is kept in memory: use train.on_bad_step = skip"},
    {Feature::swapped_parameters, Feature::background_saves, "a copy of all state would be in memory: use snapshot.mode = sync"},
    {Feature::swapped_optimizer, Feature::background_saves, "a copy of all state would be in memory: use snapshot.mode = sync"},
    {Feature::swapped_parameters, Feature::memory_snapshots, "a copy of all state would be in memory: set snapshot.memory.every = 0"},
    {Feature::swapped_optimizer, Feature::memory_snapshots, "a copy of all state would be in memory: set snapshot.memory.every = 0"},
    {Feature::rollback, Feature::local_steps, "an island cannot go back by itself while the others go on: use skip or stop"},
};

// The features of one group, in the order in which they are checked.
void add_precision(const Settings& s, std::vector<UsedFeature>& used) {
  const TrainOptions& t = s.train;
  if (t.precision == Precision::bf16) used.push_back({Feature::bf16, "train.precision = bf16"});
  if (t.parameters == Precision::bf16) used.push_back({Feature::bf16_parameters, "train.parameters = bf16"});
  if (t.gradients == Precision::bf16) used.push_back({Feature::bf16_gradients, "train.gradients = bf16"});
  if (t.fp8 != Fp8Scope::none) used.push_back({Feature::fp8, fmt::format("train.fp8 = {}", name_of(t.fp8))});
}

void add_step(const Settings& s, std::vector<UsedFeature>& used) {
  const TrainOptions& t = s.train;
  if (t.loss_chunks > 1) used.push_back({Feature::loss_chunks, fmt::format("train.loss_chunks = {}", t.loss_chunks)});
  if (t.cache_frozen_bytes > 0) used.push_back({Feature::frozen_cache, fmt::format("train.cache_frozen_bytes = {}", t.cache_frozen_bytes)});
  if (t.cuda_graph) used.push_back({Feature::cuda_graph, "train.cuda_graph = true"});
  if (t.check_every > 0) used.push_back({Feature::check_every, fmt::format("train.check_every = {}", t.check_every)});
  const std::string bad_step = fmt::format("train.on_bad_step = {}", name_of(t.on_bad_step));
  if (t.on_bad_step != OnBadStep::stop) used.push_back({Feature::recovery, bad_step});
  if (t.on_bad_step == OnBadStep::rollback) used.push_back({Feature::rollback, bad_step});
  if (s.snapshot.mode != snapshot::SnapshotMode::sync)
    used.push_back(
        {Feature::background_saves, fmt::format("snapshot.mode = {}", base::enum_name(snapshot::kSnapshotModeNames, s.snapshot.mode))});
  if (s.memory_snapshot.every > 0)
    used.push_back({Feature::memory_snapshots, fmt::format("snapshot.memory.every = {}", s.memory_snapshot.every)});
  if (s.log.sync_check) used.push_back({Feature::sync_check, "log.sync_check = true"});
}

// "mesh.dp = 2, mesh.tp = 2 (4 ranks)": the axes along which there are several ranks.
std::string axes_of(const parallel::Plan& plan, int ranks) {
  std::string axes = plan.islands > 1 ? fmt::format("island.count = {}", plan.islands) : "";
  for (const mesh::Axis& axis : plan.mesh.axes)
    if (axis.size > 1) axes += fmt::format("{}mesh.{} = {}", axes.empty() ? "" : ", ", axis.name, axis.size);
  return axes.empty() ? fmt::format("{} ranks", ranks) : fmt::format("{} ({} ranks)", axes, ranks);  // unequal parts have no common axes
}

void add_tiers(const parallel::MemoryOptions& m, std::vector<UsedFeature>& used) {
  const auto add = [&](Feature feature, const char* key, memory::TierKind tier) {
    if (tier != memory::TierKind::device) used.push_back({feature, fmt::format("memory.{} = {}", key, memory::name(tier))});
  };
  add(Feature::swapped_parameters, "parameters", m.parameters);
  add(Feature::swapped_gradients, "gradients", m.gradients);
  add(Feature::swapped_optimizer, "optimizer", m.optimizer);
}

void add_layout(const Settings& s, const parallel::Plan& plan, std::vector<UsedFeature>& used) {
  const auto axis = [&](Feature feature, const char* name) {
    if (plan.mesh.extent(name) > 1) used.push_back({feature, fmt::format("mesh.{} = {}", name, plan.mesh.extent(name))});
  };
  if (plan.zero > 0) used.push_back({Feature::zero, fmt::format("memory.zero = {}", plan.zero)});
  if (plan.zero == 3) used.push_back({Feature::zero3, "memory.zero = 3"});
  if (plan.zero == 1 || plan.zero == 2) used.push_back({Feature::zero1_or_2, fmt::format("memory.zero = {}", plan.zero)});
  int replicas = 1;
  for (const std::string& along : parallel::replicating_axes(plan)) replicas *= plan.mesh.extent(along);
  if (replicas > 1) used.push_back({Feature::replicas, axes_of(plan, replicas)});
  add_tiers(s.layout.memory, used);
  axis(Feature::tp, "tp");
  axis(Feature::cp, "cp");
  axis(Feature::pp, "pp");
  axis(Feature::ep, "ep");
  if (const parallel::ExpertLayoutOptions& e = s.layout.expert; e.placement == parallel::ExpertPlacement::fssdp) {
    used.push_back({Feature::fssdp, "expert.placement = fssdp"});
    if (e.reshard_every > 0) used.push_back({Feature::reshard, fmt::format("expert.reshard_every = {}", e.reshard_every)});
  }
  axis(Feature::mesh_island, "island");
  if (parallel::islands_step_separately(plan)) used.push_back({Feature::local_steps, fmt::format("sync.island.kind = {}", s.island.kind)});
  if (plan.islands > 1) used.push_back({Feature::remote_islands, fmt::format("island.count = {}", plan.islands)});
  if (const int ranks = plan.mesh.size() * plan.islands; ranks > 1) used.push_back({Feature::several_ranks, axes_of(plan, ranks)});
  if (!sync::needs_of(s.sync.kind).fits_cuda_graph) used.push_back({Feature::host_sync, fmt::format("sync.dp.kind = {}", s.sync.kind)});
  if (s.sync.kind != sync::SyncOptions{}.kind) used.push_back({Feature::dp_rule, fmt::format("sync.dp.kind = {}", s.sync.kind)});
  if (const parallel::ContextPlan by = s.layout.context.plan; by != parallel::ContextPlan::fixed) {
    const std::string spelled = fmt::format("context.plan = {}", base::enum_name(parallel::kContextPlanNames, by));
    used.push_back({Feature::step_plans, spelled});
    if (by == parallel::ContextPlan::bytescale) used.push_back({Feature::unequal_passes, spelled});
  }
  if (s.layout.tensor.overlap) used.push_back({Feature::tensor_overlap, "tensor.overlap = true"});
  if (s.layout.recompute.mode == parallel::RecomputeMode::stream) used.push_back({Feature::stream, "recompute.mode = stream"});
  if (s.layout.recompute.mode == parallel::RecomputeMode::stage) used.push_back({Feature::stage_recompute, "recompute.mode = stage"});
}

void add_model(const Settings& s, std::vector<UsedFeature>& used) {
  if (s.model.spectral.any()) used.push_back({Feature::spectral, fmt::format("model.spectral.rank = {}", s.model.spectral.rank)});
  if (s.model.dropout > 0) used.push_back({Feature::dropout, fmt::format("model.dropout = {}", s.model.dropout)});
  if (s.adapter.shape().behind_branches())
    used.push_back({Feature::adapters_behind,
                    fmt::format("model.adapter.style = {}", base::enum_name(model::kAdapterStyleNames, s.adapter.style))});
  if (s.model.batch_norm) used.push_back({Feature::running_statistics, "model.batch_norm = true"});
  if (s.data.packing == data::Packing::sequences) used.push_back({Feature::sequences, "data.packing = sequences"});
  const std::string sampler = fmt::format("data.sampler = {}", s.data.sampler);
  if (data::sampler_needs(s.data.sampler).losses) used.push_back({Feature::sample_losses, sampler});
  if (data::sampler_needs(s.data.sampler).whole_batch) used.push_back({Feature::whole_batch, sampler});
  if (s.data.needs().pairs) used.push_back({Feature::pairs, fmt::format("data.kind = {}", s.data.kind)});
  if (s.data.needs().retrieval) used.push_back({Feature::retrieval, fmt::format("data.kind = {}", s.data.kind)});
  if (s.data.needs().rollouts) used.push_back({Feature::rollouts, fmt::format("data.kind = {}", s.data.kind)});
}

const UsedFeature* find(std::span<const UsedFeature> used, Feature feature) {
  const auto found = std::find_if(used.begin(), used.end(), [&](const UsedFeature& one) { return one.feature == feature; });
  return found == used.end() ? nullptr : &*found;
}

}  // namespace

std::vector<UsedFeature> used_features(const Settings& settings, const parallel::Plan& plan) {
  std::vector<UsedFeature> used;
  add_precision(settings, used);
  add_step(settings, used);
  add_layout(settings, plan, used);
  add_model(settings, used);
  return used;
}

void refuse_limits(std::string_view chosen, std::span<const Limit> limits, std::span<const UsedFeature> used) {
  for (const Limit& limit : limits)
    if (const UsedFeature* one = find(used, limit.feature))
      base::fail_input("{}: does not work with {}: {}", one->spelled, chosen, limit.why);
}

std::span<const Conflict> conflicts() { return kConflicts; }

bool has_conflict(Feature feature, std::span<const UsedFeature> used) {
  return std::any_of(std::begin(kConflicts), std::end(kConflicts),
                     [&](const Conflict& one) { return one.refused == feature && find(used, one.with); });
}

void refuse_conflicts(std::span<const UsedFeature> used) {
  for (const Conflict& conflict : kConflicts) {
    const UsedFeature* one = find(used, conflict.refused);
    const UsedFeature* other = find(used, conflict.with);
    if (one && other) base::fail_input("{}: does not work with {}: {}", one->spelled, other->spelled, conflict.why);
  }
}

}  // namespace cairn::train
