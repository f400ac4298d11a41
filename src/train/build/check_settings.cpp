#include "train/build/check_settings.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "data/sampler.h"
#include "model/decoder/wiring.h"
#include "model/model.h"
#include "model/needs.h"
#include "parallel/dtensor_block.h"
#include "parallel/plan.h"
#include "sync/needs.h"
#include "train/build/check_clips.h"
#include "train/islands/remote_islands.h"
#include "train/settings.h"
#include "train/spectral/spectral_rounds.h"
#include "train/step_methods.h"
#include "train/steps/supernet_step.h"

namespace cairn::train {
namespace {

// The features that the kind of model does not work with, derived from its needs.
std::vector<Limit> model_limits(const Settings& settings) {
  const model::ModelNeeds& needs = model::needs_of(settings.model.kind);
  std::vector<Limit> limits;
  const bool tokens = needs.data == model::ModelNeeds::Data::tokens;
  if (!needs.half_precision) limits.push_back({Feature::bf16, "this model computes in fp32 only: leave train.precision out"});
  if (!tokens) limits.push_back({Feature::stream, "this model reads no sequences to slice: use recompute.mode = full"});
  if (!tokens) limits.push_back({Feature::cp, "this model reads no sequences to shard: use mesh.dp"});
  if (!needs.large_vocabulary) limits.push_back({Feature::loss_chunks, "this model has few logits: leave it out"});
  if (needs.running_statistics) limits.push_back({Feature::cuda_graph, "the host keeps the model's running means: leave it out"});
  if (needs.experts) {
    limits.push_back({Feature::cuda_graph, "the host learns how many tokens each expert gets: leave it out"});
    limits.push_back({Feature::fp8, "experts compute in bf16 or fp32: leave train.fp8 out"});
    if (settings.model.moe.balance == model::ExpertBalance::bias) {
      constexpr std::string_view kApart = "biases follow the load of one step group: use model.moe.balance = aux";
      for (const Feature feature : {Feature::local_steps, Feature::mesh_island, Feature::remote_islands})
        limits.push_back({feature, kApart});
    }
    const bool losses =
        (settings.model.moe.balance == model::ExpertBalance::aux && settings.model.moe.aux_loss > 0) || settings.model.moe.z_loss > 0;
    constexpr std::string_view kByToken = "the router's losses are means over tokens: set model.moe.aux_loss = 0 and model.moe.z_loss = 0";
    for (const Feature feature : {Feature::pairs, Feature::rollouts, Feature::retrieval})
      if (losses) limits.push_back({feature, kByToken});
    limits.push_back({Feature::sync_check, "the host learns how many tokens each expert gets: leave it out"});
  }
  if (needs.linear_attention) limits.push_back({Feature::fp8, "layers of linear attention compute in bf16 or fp32: leave train.fp8 out"});
  if (!model::is_standard(settings.model.residual))
    limits.push_back({Feature::tensor_overlap,
                      "is for model.residual = \"standard\"; a ladder's sums overlap with the next block anyway: leave it out"});
  return limits;
}

std::string model_name(const Settings& settings) { return fmt::format("model.kind = {}", settings.model.kind); }

// Keys that contradict each other, whatever the layout.
void check_values(const Settings& settings) {
  const TrainOptions& t = settings.train;
  if (t.spike_factor > 0 && t.spike_factor <= 1)
    base::fail_input("train.spike_factor = {}: must be more than 1, or 0 to look for no spikes", t.spike_factor);
  if (t.parameters == Precision::bf16 && t.precision != Precision::bf16)
    base::fail_input("train.parameters = bf16 needs train.precision = bf16: passes read the parameters in the format they are kept in");
  if (t.gradients == Precision::bf16 && t.precision != Precision::bf16)
    base::fail_input("train.gradients = bf16 needs train.precision = bf16: passes compute them in fp32 otherwise");
  if (t.fp8 == Fp8Scope::none && t.fp8_layers != "all")
    base::fail_input("train.fp8_layers = \"{}\": no layer is in fp8. Set train.fp8 = \"layers\", or leave it out.", t.fp8_layers);
  if (t.fp8 != Fp8Scope::none && t.precision != Precision::bf16)
    base::fail_input("train.fp8 = {} needs train.precision = bf16: everything that is not in fp8 is in bf16", name_of(t.fp8));
  if (t.steps == 0 && t.epochs == 0) base::fail_input("train.steps = 0: the run would have no step. Set it, or train.epochs.");
  if (t.epochs > 0 && t.steps != 0 && t.steps != TrainOptions{}.steps)
    base::fail_input("train.steps = {}: train.epochs = {} decides when the run ends. Leave one of them out, or set train.steps = 0.",
                     t.steps, t.epochs);
  if (t.check_every > t.steps && t.epochs == 0)
    base::fail_input("train.check_every = {}: train.steps = {}, and none would be checked: use a smaller one", t.check_every, t.steps);
}

void check_context(const Settings& settings, const parallel::Plan& plan) {
  const int cp = plan.mesh.extent("cp");
  if (cp > settings.data.length)
    base::fail_input("mesh.cp = {}: texts of data.length = {} are too short for so many ranks: use mesh.dp", cp, settings.data.length);
  if (cp > 1 && settings.model.attention.type != "dense")
    base::fail_input("mesh.cp = {}: context parallelism does not know model.attention.type = \"{}\" yet. Use mesh.tp, which splits heads.",
                     cp, settings.model.attention.type);
  const parallel::ContextOptions& context = settings.layout.context;
  const bool planned = context.plan != parallel::ContextPlan::fixed;
  const std::string plan_name = base::enum_name(parallel::kContextPlanNames, context.plan);
  if (planned && settings.model.attention.type != "dense")
    base::fail_input("context.plan = {}: context parallelism does not know model.attention.type = \"{}\" yet. Set context.plan = fixed.",
                     plan_name, settings.model.attention.type);
  if (planned && settings.train.micro_batch > 0)
    base::fail_input("train.micro_batch = {}: context.plan = {} makes passes of context.tokens_per_rank tokens. Leave it out.",
                     settings.train.micro_batch, plan_name);
  if (planned && settings.data.packing != data::Packing::sequences)
    base::fail_input("context.plan = {}: plans are for samples with lengths of their own. Set data.packing = sequences.", plan_name);
  if (planned && context.tokens_per_rank < 1)
    base::fail_input("context.tokens_per_rank = {}: context.plan = {} needs the tokens that one rank can hold in a pass. Set it.",
                     context.tokens_per_rank, plan_name);
  // A rank may wait for a sum over all ranks in a pass that others reach only after a unit with this very rank.
  if (context.plan == parallel::ContextPlan::bytescale && plan.zero >= 2 && !settings.layout.memory.accumulate_unsharded)
    base::fail_input(
        "memory.accumulate_unsharded = false: context.plan = bytescale runs different passes on each rank, and gradients must "
        "be summed once at the end. Set it to true, or use context.plan = flexsp.");
  if (!planned && settings.data.packing == data::Packing::sequences)
    base::fail_input(
        "data.packing = sequences: samples have lengths of their own. Set context.plan = bytescale or flexsp, or "
        "data.packing = none to cut and pad them.");
  const std::string linear(base::enum_name(parallel::kLinearFormNames, context.linear));
  if (!model::needs_of(settings.model.kind).linear_attention) {
    const bool rounded = context.state_dtype != model::StateDtype::fp32;
    if (context.linear != model::LinearForm::zeco || context.scan_blocks > 0 || rounded)
      base::fail_input("context.{}: model.kind = {} has no linear attention. Leave it out; context.form is for softmax attention.",
                       context.scan_blocks > 0 ? fmt::format("scan_blocks = {}", context.scan_blocks)
                       : rounded               ? "state_dtype = bf16"
                                               : "linear = " + linear,
                       settings.model.kind);
    return;
  }
  if (context.scan_blocks > 0 && context.linear != model::LinearForm::zeco)
    base::fail_input("context.scan_blocks = {}: only zeco sends states in blocks. Leave it out, or set context.linear = zeco (it is {}).",
                     context.scan_blocks, linear);
  if ((cp > 1 || planned) && context.balanced)
    base::fail_input(
        "context.balanced = true: states of linear attention pass from rank to rank in the order of tokens, and every rank has "
        "the same work anyway. Set context.balanced = false.");
}

void check_streams(const Settings& settings, const parallel::Plan& plan) {
  const model::StreamOptions& o = settings.model.parscale;
  if (o.streams == 1) return;
  const int tp = plan.mesh.extent("tp");
  const bool axis = o.placement == "axis";
  if (axis && (tp == 1 || o.streams % tp != 0))
    base::fail_input(
        "model.parscale.placement = axis: {} streams over mesh.tp = {}: each rank runs equally many. Set mesh.tp to a divisor of "
        "the streams above 1, or use placement = batch.",
        o.streams, tp);
  if (o.start_step > 0 && axis)
    base::fail_input(
        "model.parscale.start_step = {}: before it there is one stream, which placement = axis does not split. Use placement = "
        "batch.",
        o.start_step);
  if (o.start_step > 0 && settings.train.cuda_graph)
    base::fail_input("model.parscale.start_step = {}: a captured graph would go on with one stream. Use train.cuda_graph = false.",
                     o.start_step);
  if (o.start_step >= settings.train.steps && o.start_step > 0 && settings.train.epochs == 0)
    base::fail_input("model.parscale.start_step = {}: train.steps = {}, so the streams would never start. Use a smaller one.", o.start_step,
                     settings.train.steps);
  if (settings.layout.context.plan != parallel::ContextPlan::fixed)
    base::fail_input(
        "context.plan: plans for each step count the tokens of one stream only. Set context.plan = fixed, or "
        "model.parscale.streams = 1.");
}

// The passes that can begin above the frozen layers are those of ordinary steps over texts.
void check_frozen_cache(const Settings& settings) {
  const int64_t bytes = settings.train.cache_frozen_bytes;
  if (bytes == 0) return;
  const std::string key = fmt::format("train.cache_frozen_bytes = {}", bytes);
  if (!settings.data.needs().is_text())
    base::fail_input("{}: samples of data.kind = {} are not kept. Leave it out.", key, settings.data.kind);
  if (const std::string& method = step_method(settings).name; method != TrainOptions{}.method)
    base::fail_input("{}: steps of {} make passes in their own way. Leave it out.", key, method);
  if (settings.model.parscale.streams > 1)
    base::fail_input("{}: model.parscale.streams = {}: a sample has several streams. Leave it out.", key, settings.model.parscale.streams);
}

// What the sampler needs of the run. Its own keys are checked where it is made.
void check_sampler(const Settings& settings) {
  const std::string& name = settings.data.sampler;
  const data::SamplerNeeds& needs = data::sampler_needs(name);
  if (needs.epochs && settings.train.epochs == 0)
    base::fail_input(
        "data.sampler = {}: its epochs differ in length, so steps cannot end the run. Set train.epochs instead of train.steps.", name);
  if (needs.whole_batch && !settings.data.weights.empty())
    base::fail_input("data.weights: data.sampler = {} draws from all samples alike. Leave the weights out, or use data.sampler = shuffled.",
                     name);
}

// Islands that step separately.
void check_islands(const Settings& settings, const parallel::Plan& plan) {
  const std::string& kind = settings.island.kind;
  const int islands = std::max(plan.mesh.extent("island"), plan.islands);
  const sync::SyncNeeds& needs = sync::needs_of(kind);
  if (needs.several_islands && islands == 1)
    base::fail_input("sync.island.kind = {}: there is one island only: set mesh.island (or --islands), or leave the rule out", kind);
  if (!needs.local_steps) return;
  if (settings.train.global_batch < islands)
    base::fail_input("train.global_batch = {}: {} islands share its samples, and each needs at least one", settings.train.global_batch,
                     islands);
  constexpr int64_t kMinKept = 3;  // one island may be two snapshots ahead of another, and they need one of the same step
  if (settings.snapshot.mode != snapshot::SnapshotMode::sync && settings.snapshot.keep < kMinKept)
    base::fail_input(
        "snapshot.keep = {} with snapshot.mode = {}: islands save separately, and may be two snapshots apart when they are killed: use "
        "{} or more, or snapshot.mode = sync",
        settings.snapshot.keep, base::enum_name(snapshot::kSnapshotModeNames, settings.snapshot.mode), kMinKept);
}

}  // namespace

void check_settings(const Settings& settings, const parallel::Plan& plan) {
  check_values(settings);
  check_remote_island(settings);
  const std::vector<UsedFeature> used = used_features(settings, plan);
  refuse_limits(model_name(settings), model_limits(settings), used);
  check_step_method(settings, plan);
  check_sampler(settings);
  check_clips(settings, plan);
  check_context(settings, plan);
  check_streams(settings, plan);
  check_frozen_cache(settings);
  check_spectral(settings, plan);
  check_islands(settings, plan);
  refuse_conflicts(used);
}

void check_placements(const Settings& settings, const model::Model& model, const parallel::Plan& plan) {
  static constexpr Limit kLimits[] = {
      {Feature::fp8, "blocks on DTensors have no fp8 linear layers: leave it out, or the placement"},
      {Feature::dropout, "blocks on DTensors draw no random numbers: leave it out, or the placement"},
      {Feature::cp, "blocks on DTensors have no context-parallel attention: use mesh.tp or mesh.dp instead"},
      {Feature::tensor_overlap, "blocks on DTensors wait for each of their messages: leave it out, or the placement"},
  };
  check_elastic_stages(settings, model, plan);
  const std::vector<bool> chosen = parallel::dtensor_blocks(model, plan);
  for (size_t b = 0; b < chosen.size(); ++b) {
    if (!chosen[b]) continue;
    if (settings.model.parscale.streams > 1)
      base::fail_input("plan.place: {} computes {} streams, which blocks on DTensors do not. Leave the placement out.",
                       model.blocks()[b]->card().name, settings.model.parscale.streams);
    if (settings.model.supernet.any())
      base::fail_input("plan.place: {} leaves out no channels, as subnets of a supernet do. Leave the placement out.",
                       model.blocks()[b]->card().name);
    const std::string what =
        fmt::format("the placement of the parameters of {}, which no block has by itself", model.blocks()[b]->card().name);
    return refuse_limits(what, kLimits, used_features(settings, plan));
  }
}

void check_accumulation(const Settings& settings, const parallel::Plan& plan, int64_t local_samples) {
  if (settings.train.gradients == Precision::bf16 && plan.micro_batch < local_samples)
    base::fail_input("train.gradients = bf16: gradient accumulation sums in fp32: leave it out, or set train.micro_batch = 0 (it is {})",
                     settings.train.micro_batch);
}

void check_instruments(const Settings& settings, const at::Device& device) {
  if (!settings.log.kernels) return;
  if (!device.is_cuda())
    base::fail_input("log.kernels = true: it is for GPUs, and this run is on the CPU: leave it out (log.trace shows the parts of a step)");
  if (settings.log.memory) base::fail_input("log.kernels = true: libtorch has one profiler, and log.memory = true uses it: drop one");
  if (settings.log.sync_check)
    base::fail_input("log.kernels = true: it waits for the device after some steps, which log.sync_check = true forbids: drop one");
}

void check_device(const Settings& settings, const at::Device& device) {
  const StepMethod& method = step_method(settings);
  const TrainOptions& t = settings.train;
  if (t.cuda_graph && !device.is_cuda())
    base::fail_input("train.cuda_graph = true: CUDA graphs are for GPUs, and this run is on the CPU: leave it out, or use --device cuda");
  if (!device.is_cuda()) return;
  if (!method.needs.gpu) base::fail_input("train.method = {}: works on the CPU only so far: use --device cpu", method.name);
  if (t.check_every > 0 && !t.deterministic)
    base::fail_input(
        "train.check_every = {}: a GPU sums the gradients of attention in any order, so no two passes are bitwise identical: set "
        "train.deterministic = true as well",
        t.check_every);
}

bool is_allowed(Feature feature, const Settings& settings, const parallel::Plan& plan) {
  const auto limits = [&](const std::vector<Limit>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Limit& limit) { return limit.feature == feature; });
  };
  return !limits(model_limits(settings)) && !limits(step_method(settings).needs.limits) &&
         !has_conflict(feature, used_features(settings, plan));
}

}  // namespace cairn::train
