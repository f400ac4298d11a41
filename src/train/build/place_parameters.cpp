#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "comm/group.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "data/samples/packing.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "kernels/fp8.h"
#include "model/decoder/weight_form.h"
#include "model/experts/lsh_exchange.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "parallel/dtensor_block.h"
#include "parallel/experts/copy_memory.h"
#include "parallel/experts/expert_exchange.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/linear_context.h"
#include "parallel/layout/measure_links.h"
#include "parallel/layout/settle_context.h"
#include "train/build/build_steps.h"
#include "train/build/check_settings.h"
#include "train/fp8_linear.h"
#include "train/loss_chunks.h"
#include "train/offload/make_swapper.h"
#include "train/planned.h"

namespace cairn::train {
namespace {

// The budget of the device that is left for gathered blocks; 0: no limit.
int64_t gathered_bytes_max(const OffloadPlan& plan, const parallel::MemoryOptions& memory) {
  const std::optional<int64_t> budget = parallel::budget_bytes("memory.device_budget", memory.device_budget);
  return budget && plan.gathered > 0 ? *budget - plan.device_needed() + plan.gathered : 0;
}

// What lies in tiers, their budgets taken.
parallel::SwappedState swapped_state(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained,
                                     planner::StepRules rules) {
  const parallel::MemoryOptions& memory = job.config.settings.layout.memory;
  rules.trained = trained;
  const OffloadPlan plan = offload_plan(job.config.settings, *job.engine.model, job.config.plan, rules, world.rank());
  return {.swapper = make_swapper(job, world, start, plan),
          .parameters = memory.parameters,
          .gradients = memory.gradients,
          .read_ahead = memory.read_ahead,
          .gathered_bytes_max = gathered_bytes_max(plan, memory),
          .log = world.rank() == 0 ? &world.log() : nullptr};
}

void make_store(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained, const planner::StepRules& rules) {
  const TrainOptions& t = job.config.settings.train;
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(job.config.device), bf16 = fp32.dtype(at::kBFloat16);
  const auto format = [&](Precision precision) { return precision == Precision::bf16 ? bf16 : fp32; };
  const int64_t units = min_unit_elements(job.config.settings.layout.memory, rules);
  const model::Model& model = *job.engine.model;
  job.engine.store = std::make_unique<parallel::ParameterStore>(parallel::ParameterStore::Parts{
      .world = world,
      .model = model,
      .plan = job.config.plan,
      .trained = trained,
      .master = format(t.parameters),
      .compute = format(t.precision),
      .gradients = format(t.gradients),
      .whole_parameters = rules.whole_parameters,
      .min_unit_elements = units,
      .accumulate_unsharded = rules.accumulate_unsharded,
      .reuse_gradient_memory =
          job.config.device.is_cuda() && !t.cuda_graph && job.config.settings.layout.memory.gradients == memory::TierKind::device,
      .swapped = swapped_state(job, world, start, trained, rules)});
  job.assembly = std::make_unique<parallel::FullTensorGather>(parallel::FullTensorGather::Parts{
      .world = world, .model = model, .plan = job.config.plan, .whole_parameters = rules.whole_parameters, .min_unit_elements = units});
  job.state_map = std::make_unique<parallel::StateMap>(parallel::StateMap::Parts{.model = model,
                                                                                 .plan = job.config.plan,
                                                                                 .ranks = job.engine.step_group->ranks(),
                                                                                 .whole_parameters = rules.whole_parameters,
                                                                                 .min_unit_elements = units});
}

// What sync and optimizer work on: the trained pieces that this rank keeps, in one order.
void list_trained(Engine& engine, const std::vector<bool>& trained) {
  engine.trained.values.clear(), engine.trained.gradients.clear(), engine.trained.full.clear();
  for (const parallel::ParameterSlice& piece : engine.store->pieces()) {
    if (!piece.gradient.defined()) continue;
    engine.trained.values.push_back({piece.name, piece.value});
    engine.trained.gradients.push_back({piece.name, piece.gradient});
  }
  for (size_t i = 0; i < trained.size(); ++i)
    if (const model::Parameter& one = engine.model->parameters()[i]; trained[i]) engine.trained.full.push_back({one.name, one.elements()});
}

// Of a rank, where they were not measured: for the line about attention that a run starts with, and for calibration of expert copies.
constexpr double kUsualFlopsCpu = 20e9, kUsualFlopsGpu = 200e12;

double usual_flops(const at::Device& device) { return device.is_cuda() ? kUsualFlopsGpu : kUsualFlopsCpu; }

// Ranks that step together measure their links together, so that all choose the same.
void settle_context(Job& job, comm::World& world) {
  parallel::Plan& plan = job.config.plan;
  if (plan.mesh.extent("cp") == 1) return;
  const Settings& s = job.config.settings;
  const parallel::ContextBatch batch{.sequences = plan.micro_batch * s.data.needs().sequences(),
                                     .length = job.data.length,
                                     .documents = data::separates_documents(s.data.packing),
                                     .element_bytes = parallel::compute_bytes(plan)};
  const model::ContextLinks links = plan.context.automatic
                                        ? parallel::measure_context_links(world.group(plan.mesh.peers(world.rank(), "cp"), "links"),
                                                                          *job.engine.step_group, job.config.device)
                                        : model::ContextLinks{};
  const std::string why = parallel::settle_context(plan, *job.engine.model, batch, links);
  job.engine.context = plan.context;
  if (world.rank() != 0) return;
  if (!why.empty()) world.log().info("context.form = auto: {}", why);
  const std::string linear =
      parallel::describe_linear_context(plan, *job.engine.model,
                                        {.sequences = batch.sequences,
                                         .length = batch.length,
                                         .chunk = s.model.chunk,
                                         .links = world.transport().link_facts(plan.mesh.peers(0, "cp")),
                                         .flops_per_s = links.flops_per_s > 0 ? links.flops_per_s : usual_flops(job.config.device)});
  if (linear.empty()) return;
  world.log().info("{}", linear);
  if (plan.context.state_dtype == model::StateDtype::bf16)
    world.log().warn(
        "context.state_dtype = bf16: states are rounded on every rank that they pass, so results differ from those of one rank");
}

// The width of the rows that experts of this model take; 0: it has none.
int64_t expert_row_width(const model::Model& model) {
  for (const model::Parameter& one : model.parameters()) {
    const auto expert = std::ranges::find(one.axes, parallel::kExpertAxis), embed = std::ranges::find(one.axes, "embed");
    if (expert != one.axes.end() && embed != one.axes.end()) return one.shape[static_cast<size_t>(embed - one.axes.begin())];
  }
  return 0;
}

// expert.compress: centroids in the place of rows.
void compress_rows(Engine& engine, const parallel::ExpertLayoutOptions& options) {
  const model::LshOptions lsh{.hashes = options.hashes, .hash_dim = options.hash_dim, .residual = options.residual};
  const int64_t width = expert_row_width(*engine.model);
  model::check(lsh, width);
  engine.owned.experts = model::make_lsh_exchange(std::move(engine.owned.experts), width, lsh);
}

// How rows reach the experts of other ranks, and which experts are copied for a step.
void place_experts(Job& job, comm::World& world) {
  const parallel::Plan& plan = job.config.plan;
  const parallel::ExpertLayoutOptions& options = job.config.settings.layout.expert;
  const bool compresses = options.compress != parallel::ExpertCompress::none;
  if (!parallel::places_experts(plan)) {
    if (options.placement == parallel::ExpertPlacement::fssdp && world.rank() == 0)
      world.log().warn("expert.placement = fssdp: every rank has all experts, so none are copied. Set mesh.ep.");
    if (compresses && world.rank() == 0)
      world.log().warn("expert.compress = lsh: every rank has all experts, so no rows travel and none are compressed. Set mesh.ep.");
    return;
  }
  Engine& engine = job.engine;
  comm::Group& group = world.group(plan.mesh.peers(world.rank(), "ep"), "experts");
  if (options.placement == parallel::ExpertPlacement::fssdp) {
    const parallel::NodeOf nodes = parallel::nodes_along(group, options);
    const int64_t bytes = parallel::copy_memory(*engine.model, plan, options).expert_bytes, element = parallel::compute_bytes(plan);
    engine.owned.copies = std::make_unique<parallel::CopiedExperts>(
        parallel::CopiedExperts::Parts{.world = world,
                                       .model = *engine.model,
                                       .plan = plan,
                                       .store = *engine.store,
                                       .counters = world.group(engine.step_group->ranks(), "counts of experts"),
                                       .nodes = nodes,
                                       .options = options,
                                       .costs = parallel::layer_costs(group, nodes,
                                                                      {.elements = bytes / element,
                                                                       .bytes = bytes,
                                                                       .row_bytes = expert_row_width(*engine.model) * element,
                                                                       .flops_per_s = usual_flops(job.config.device)})});
  }
  engine.owned.experts = parallel::make_expert_exchange(group, options, engine.owned.copies.get());
  if (compresses) compress_rows(engine, options);
  engine.options.experts = engine.owned.experts.get();
}

// Ranks of a CPU share the machine's memory.
void check_copies(const Job& job, comm::World& world) {
  const parallel::Plan& plan = job.config.plan;
  const parallel::ExpertLayoutOptions& options = job.config.settings.layout.expert;
  if (options.placement != parallel::ExpertPlacement::fssdp || !parallel::places_experts(plan)) return;
  const int64_t free = job.config.device.is_cuda() ? kernels::free_memory_bytes(job.config.device) : base::available_bytes() / world.size();
  parallel::check_copies_fit(parallel::copy_memory(*job.engine.model, plan, options), options.memory_slots, free);
}

// Whether chunks of logits without a target are left out. On a GPU the host waits to learn which, so only where it may, and where data have
// prompts.
bool skips_logits(const Job& job) {
  const Settings& s = job.config.settings;
  if (!job.config.device.is_cuda()) return true;
  const bool has_prompts = job.data.chat || s.data.needs().length_varies();
  return has_prompts && s.layout.recompute.mode == parallel::RecomputeMode::stream && !s.train.cuda_graph && !s.log.sync_check;
}

}  // namespace

void place_state(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained) {
  make_store(job, world, start, trained,
             step_rules(job.config.settings, *job.engine.model, job.config.plan, job.data.length, job.config.device.is_cuda()));
  list_trained(job.engine, trained);
}

void place_parameters(Job& job, comm::World& world, const Start& start, const std::vector<bool>& trained) {
  const Settings& s = job.config.settings;
  parallel::Plan& plan = job.config.plan;
  Engine& engine = job.engine;
  const bool on_gpu = job.config.device.is_cuda();
  parallel::fit_to_model(plan, *engine.model, s.layout.pipeline, job.data.length, s.layout.place);
  settle_context(job, world);
  check_placements(s, *engine.model, plan);
  if (s.layout.recompute.mode == parallel::RecomputeMode::stream && std::ranges::count(parallel::dtensor_blocks(*engine.model, plan), true))
    base::fail_input(
        "recompute.mode = stream: blocks on DTensors (plan.place) compute whole sequences. Use full, or leave plan.place out.");
  if (const auto forms = model::weight_forms(*engine.model);
      !forms.empty() && std::ranges::count(parallel::dtensor_blocks(*engine.model, plan), true) > 0)
    base::fail_input("plan.place: blocks on DTensors have plain weights, and {} is {}. Leave plan.place out.",
                     forms.front()->dense_parameter().name, forms.front()->name());
  engine.model = parallel::with_dtensor_blocks(std::move(engine.model), plan, world);
  const planner::StepRules rules = step_rules(s, *engine.model, plan, job.data.length, on_gpu);
  check_copies(job, world);
  place_state(job, world, start, trained);
  engine.buffers = engine.model->make_buffers(at::TensorOptions().dtype(at::kFloat).device(job.config.device));
  engine.options.recompute_stage = rules.recompute_stage;
  engine.options.recompute_last = rules.recompute_last;
  engine.options.recompute = rules.recompute;
  engine.options.recompute_all_ahead = s.layout.recompute.overlap == parallel::RecomputeOverlap::all;
  engine.options.partition_activations = rules.partition_activations;
  engine.options.scatter_boundaries = rules.scatter_boundaries;
  engine.options.prefetch_blocks = static_cast<int>(rules.prefetch_blocks);
  engine.options.loss_chunks = loss_chunks_of(s, *engine.model, plan, job.data.length, on_gpu);
  engine.options.slice = rules.slice;
  engine.options.head_slice = parallel::head_slice_tokens(s.layout.recompute);
  engine.options.skip_unneeded_logits = skips_logits(job);
  engine.options.offload_inputs = s.layout.recompute.inputs == parallel::RecomputeInputs::host;
  place_experts(job, world);
  engine.owned.fp8 = fp8_linear_layers(s, *engine.model, plan);
  engine.options.fp8 = engine.owned.fp8.get();
  if (engine.owned.fp8 && on_gpu && !kernels::has_fp8(job.config.device))
    base::fail_input("train.fp8 = {}: this GPU has no fp8 matrix products (compute capability 8.9 or more has). Leave it out.",
                     name_of(s.train.fp8));
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::parameters, engine.store->parameter_bytes());
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::gradients, engine.store->gradient_bytes());
}

}  // namespace cairn::train
