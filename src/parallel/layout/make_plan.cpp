#include "parallel/layout/make_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/actors/simulation.h"
#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/files.h"
#include "mesh/local_shard.h"
#include "model/model.h"
#include "parallel/dtensor_block.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/place_overrides.h"
#include "parallel/layout/stage_split.h"
#include "parallel/layout/tensor_split.h"
#include "parallel/pipeline/actors.h"
#include "parallel/pipeline/stage_edges.h"
#include "parallel/schedule/check.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/extra_actions.h"

namespace cairn::parallel {
namespace {

int64_t largest_divisor(int64_t of, int64_t most) {
  while (of % most != 0) --most;
  return most;
}

// "mesh.pp = 2, mesh.tp = 3": the axes above 1. `dp`: 0 where it is not known.
std::string degrees(const MeshOptions& m, int64_t dp) {
  std::string text;
  for (const auto& [name, size] : {std::pair{"island", m.island}, {"pp", m.pp}, {"dp", dp}, {"cp", m.cp}, {"tp", m.tp}, {"ep", m.ep}})
    if (size > 1 || (dp > 0 && std::string_view(name) == "dp")) text += fmt::format("{}mesh.{} = {}", text.empty() ? "" : ", ", name, size);
  return text;
}

constexpr int64_t kMaxScheduleBytes = int64_t{1} << 26;

// FLOPs of each block per token of a sequence of this length, from its card; at least 1.
std::vector<double> costs_of(const model::Model& model, int64_t length) {
  std::vector<double> costs;
  for (const auto& block : model.blocks()) {
    double flops = 0;
    for (const model::BlockOp& operation : block->card().operations)
      flops += operation.flops_per_token + operation.flops_per_pair * static_cast<double>(length + 1) / 2;
    costs.push_back(flops + 1);
  }
  return costs;
}

// Number of blocks of each layer (blocks are called layers.N.something). Blocks before the first layer count with it, those after the last
// with the last.
std::vector<int64_t> blocks_by_layer(const model::Model& model) {
  std::vector<int64_t> blocks;
  std::string layer;
  for (const auto& block : model.blocks()) {
    const std::string& name = block->card().name;
    const std::string mine = name.starts_with("layers.") ? name.substr(0, name.find('.', 7)) : "";
    const bool begins = !mine.empty() && mine != layer && !layer.empty();
    if (blocks.empty() || begins) blocks.push_back(0);
    if (!mine.empty()) layer = mine;
    ++blocks.back();
  }
  return blocks;
}

std::vector<int64_t> split_blocks(const model::Model& model, const PipelineOptions& options, int stages, int64_t length) {
  if (options.split.empty()) return balance_stages(costs_of(model, length), stages);
  std::vector<int64_t> layers;
  for (const std::string& text : options.split) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      base::fail_input("pipeline.split: \"{}\" is not a number of layers", text);
    layers.push_back(number);
  }
  if (static_cast<int>(layers.size()) != stages) base::fail_input("pipeline.split: {} numbers for {} stages", layers.size(), stages);
  const std::vector<int64_t> by_layer = blocks_by_layer(model);
  if (const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0}); sum != static_cast<int64_t>(by_layer.size()))
    base::fail_input("pipeline.split: {} layers in all, and the model has {}", sum, by_layer.size());
  check_split(layers, static_cast<int64_t>(by_layer.size()));
  std::vector<int64_t> blocks;
  size_t next = 0;
  for (const int64_t count : layers) {
    blocks.push_back(0);
    for (int64_t i = 0; i < count; ++i) blocks.back() += by_layer[next++];
  }
  return blocks;
}

void check_stages(const std::vector<int64_t>& blocks, int stages, const model::Model& model) {
  if (static_cast<int>(blocks.size()) != stages)
    base::fail_input("the plan has blocks for {} stages, and the schedule has {}", blocks.size(), stages);
  if (const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0}); sum != static_cast<int64_t>(model.blocks().size()))
    base::fail_input("the plan's stages have {} blocks in all, and the model has {}", sum, model.blocks().size());
  check_split(blocks, static_cast<int64_t>(model.blocks().size()));
}

// The placement that blocks have a form for: along tp by heads and widths, along ep by experts.
mesh::Placement native_placement(const model::Parameter& parameter, const mesh::Mesh& mesh) {
  mesh::Placement native;
  const auto add = [&](const char* axis, mesh::Placement::How how) {
    if (!std::holds_alternative<mesh::Replicate>(how)) native.axes.push_back({axis, std::move(how)});
  };
  add("tp", tensor_split(parameter, mesh.extent("tp")));
  add("ep", expert_split(parameter, mesh.extent("ep")));
  return native;
}

// Throws bad_input for experts that the given plan places otherwise than by their ids.
void check_given_experts(const Plan& plan, const model::Parameter& parameter, const mesh::Placement& given) {
  if (given.axes.empty()) return;
  const mesh::Placement native = native_placement(parameter, plan.mesh);
  for (const int rank : plan.mesh.members())
    if (mesh::local_shard(given, plan.mesh.axis_coordinates(rank), parameter.shape) !=
        mesh::local_shard(native, plan.mesh.axis_coordinates(rank), parameter.shape))
      base::fail_input("the plan's placement of {} is \"{}\": experts lie along ep by their ids. Use \"{}\", or leave it out.",
                       parameter.name, mesh::to_string(given), mesh::to_string(native));
}

// Throws bad_input for a placement in the given plan under which no block can run the parameter.
void check_given(const Plan& plan, const model::Model& model, size_t index) {
  const model::Parameter& parameter = model.parameters()[index];
  const mesh::Placement given = placement_of(plan, parameter.name);
  const std::string text = fmt::format("the plan's placement of {} is \"{}\"", parameter.name, mesh::to_string(given));
  try {
    mesh::check(given, plan.mesh, parameter.shape);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::bad_input) throw;
    base::fail_input("the plan's placement of {}: {}", parameter.name, error.what());
  }
  if (expert_dim(parameter) >= 0) return check_given_experts(plan, parameter, given);
  if (is_native_split(parameter, plan.mesh, given)) return;
  for (const mesh::Placement::OnAxis& on : given.axes) {
    if (std::holds_alternative<mesh::Replicate>(on.how)) continue;
    if (on.axis != "tp")
      base::fail_input("{}: parameters are placed along tp only. Leave {} out, and use memory.zero to shard them along it.", text, on.axis);
    if (std::holds_alternative<mesh::Partial>(on.how))
      base::fail_input("{}: a parameter cannot be a partial sum. Use replicate or split(DIM).", text);
    if (std::holds_alternative<mesh::Ragged>(on.how))
      base::fail_input("{}: a block has no form for a table of owners. Use replicate or split(DIM).", text);
  }
  if (const model::Card* block = block_without_dtensors(model))
    base::fail_input("{}: block {} has no form for it, because every rank along tp has the whole stream. It can run \"{}\".", text,
                     block->name, mesh::to_string(mesh::Placement{{{"tp", tensor_split(parameter, plan.mesh.extent("tp"))}}}));
}

void check_names(const Plan& plan, const model::Model& model) {
  std::vector<std::string> names;
  for (const model::Parameter& parameter : model.parameters()) names.push_back(parameter.name);
  for (const auto& [name, placement] : plan.placements)
    if (std::find(names.begin(), names.end(), name) == names.end()) base::fail_unknown("parameter in the plan's placements", name, names);
}

}  // namespace

Plan make_plan(const LayoutOptions& options, int ranks) {
  const MeshOptions& m = options.mesh;
  const int64_t others = m.island * m.pp * m.cp * m.tp * m.ep;
  if (m.dp == 0 && ranks % others != 0)
    base::fail_input("{}: {} ranks cannot be divided by {}: pass --nproc {}, or change one of them", degrees(m, 0), ranks, others,
                     ((ranks + others - 1) / others) * others);
  const int64_t dp = m.dp == 0 ? ranks / others : m.dp;
  if (dp * others != ranks) {
    if (others == 1)
      base::fail_input("mesh.dp = {} needs {} ranks and there are {}: pass --nproc {}, or leave mesh.dp at 0", dp, dp, ranks, dp);
    base::fail_input("{} is {} ranks and there are {}: pass --nproc {}{}", degrees(m, dp), dp * others, ranks, dp * others,
                     m.shard > 1 ? " (mesh.shard is the part of mesh.dp that shards state, not an axis beside it)" : "");
  }
  if (m.shard > 1 && dp % m.shard != 0)
    base::fail_input("mesh.shard = {}: does not divide mesh.dp = {}; the nearest that does is {}", m.shard, dp,
                     largest_divisor(dp, std::min(m.shard, dp)));
  if (m.shard > 1 && options.memory.zero == 0)
    base::fail_input(
        "mesh.shard = {}: with memory.zero = 0 nothing is sharded along it: leave mesh.shard out, or set memory.zero to 1, "
        "2 or 3",
        m.shard);
  Plan plan;
  plan.zero = static_cast<int>(options.memory.zero < 0 ? (m.shard > 1 ? 3 : 0) : options.memory.zero);
  const int64_t shard = m.shard > 0 ? m.shard : plan.zero > 0 ? dp : 1;
  const auto axis = [&](const char* name, int64_t size) {
    if (size > 1) plan.mesh.axes.push_back({name, static_cast<int>(size)});
  };
  axis("island", m.island);
  axis("pp", m.pp);
  plan.mesh.axes.push_back({"dp", static_cast<int>(dp / shard)});
  axis("shard", shard);
  axis("cp", m.cp);
  axis("tp", m.tp);
  axis("ep", m.ep);
  if (plan.mesh.extent("shard") * plan.mesh.extent("cp") == 1) {
    // A recipe for many ranks may be tried on one. But along island and ep nothing is sharded, which is not what was asked for.
    if (plan.zero > 0 && m.island * m.ep > 1)
      base::fail_input(
          "memory.zero = {}: state is sharded along dp and cp, not along {}: use mesh.dp as well or in its place, or leave memory.zero out",
          plan.zero, m.island > 1 ? "island" : "ep");
    plan.zero = 0;  // one rank has all of it
  }
  if (plan.zero > 0) plan.partition = options.memory.partition;
  const bool automatic = options.context.form == kAutomaticContext;
  const model::ContextMethod method =
      automatic ? model::ContextMethod() : model::parse_context_method(options.context.form, m.cp > 1 ? m.cp : 0);
  const bool by_step = options.context.plan != ContextPlan::fixed;  // sequences have ranks though there is no axis for them
  if (m.cp > 1 || by_step)
    plan.context = {.method = method,
                    .balanced = options.context.balanced,
                    .linear = options.context.linear,
                    .scan_blocks = options.context.scan_blocks,
                    .state_dtype = options.context.state_dtype,
                    .automatic = automatic && !by_step};
  return plan;
}

Schedule schedule_of(const PipelineOptions& options, int ranks, int micro_batches) {
  if (options.csv.empty())
    return make_schedule({.name = options.schedule,
                          .ranks = ranks,
                          .stages_per_rank = static_cast<int>(options.stages_per_rank),
                          .micro_batches = micro_batches});
  Schedule schedule = read_schedule_csv(base::read_file(options.csv, kMaxScheduleBytes), options.csv);
  check(schedule);
  if (schedule.ranks() != ranks || schedule.micro_batches != micro_batches)
    base::fail_input(
        "pipeline.csv = {}: is for {} ranks and {} micro-batches, and there are {} and {}: set mesh.pp and "
        "pipeline.micro_batches to fit",
        options.csv, schedule.ranks(), schedule.micro_batches, ranks, micro_batches);
  return schedule;
}

Schedule schedule_of(const LayoutOptions& options, const Plan& plan, int micro_batches) {
  const RecomputeOptions& recompute = options.recompute;
  const bool recomputes = recompute.mode != RecomputeMode::none;
  return add_actions(schedule_of(options.pipeline, plan.mesh.extent("pp"), micro_batches),
                     {.recompute = recomputes && recompute.overlap != RecomputeOverlap::none,
                      .except_last = recompute.except_last,
                      .offload = recomputes && recompute.inputs == RecomputeInputs::host,
                      .gather = plan.zero == 3,
                      .reduce = options.pipeline.reduce == ReduceTime::stage});
}

void fit_to_model(Plan& plan, const model::Model& model, const PipelineOptions& pipeline, int64_t length, const PlaceOptions& place) {
  const int tp = plan.mesh.extent("tp"), pp = plan.mesh.extent("pp");
  if (pp > 1) {
    const Schedule schedule = schedule_of(pipeline, pp, static_cast<int>(plan.micro_batches));
    if (!plan.rank_of_stage.empty() && plan.rank_of_stage != schedule.rank_of_stage)
      base::fail_input("the plan runs its stages on the ranks [{}] along pp, and the schedule {} on [{}]",
                       fmt::join(plan.rank_of_stage, ", "), schedule.name, fmt::join(schedule.rank_of_stage, ", "));
    plan.schedule = schedule.name;
    plan.rank_of_stage = schedule.rank_of_stage;
    if (plan.stage_blocks.empty()) plan.stage_blocks = split_blocks(model, pipeline, schedule.stages(), length);
    check_stages(plan.stage_blocks, schedule.stages(), model);
    plan.registers = static_cast<int>(pipeline.registers);
    const std::vector<StageEdge> edges = stage_edges(model, plan);
    base::check_no_deadlock(all_actors(schedule, edges, edge_registers(schedule, edges, plan.registers)).graph);
  }
  apply_overrides(plan, model, place);
  const bool given = !plan.placements.empty();
  if (!given) check_tensor_split(model, tp);
  check_expert_split(model, plan.mesh.extent("ep"));
  std::map<std::string, mesh::Placement> placements;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const model::Parameter& parameter = model.parameters()[i];
    if (given) check_given(plan, model, i);
    if (given && expert_dim(parameter) < 0 && !is_native_split(parameter, plan.mesh, placement_of(plan, parameter.name))) {
      placements[parameter.name] = placement_of(plan, parameter.name);  // "replicated" too: it is not what a plan without it means
      continue;
    }
    if (mesh::Placement native = native_placement(parameter, plan.mesh); !native.axes.empty())
      placements[parameter.name] = std::move(native);
  }
  check_names(plan, model);
  plan.placements = std::move(placements);
}

}  // namespace cairn::parallel
