#include "parallel/state/parameter_store.h"

#include <algorithm>

#include "base/check.h"
#include "base/memory_scope.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "mesh/trainable_gradients.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {
namespace {

comm::Group* group_of_several(comm::World& world, const std::vector<int>& ranks, std::string_view name = "") {
  return ranks.size() > 1 ? &world.group(ranks, name) : nullptr;
}

// How often this rank's blocks name each parameter.
std::vector<int32_t> uses_here(const model::Model& model, const Plan& plan, const ModelShard& shard) {
  if (plan.stage_blocks.size() <= 1) return model.uses();
  std::vector<int32_t> uses(model.parameters().size(), 0);
  for (const int stage : shard.stages) {
    const BlockRange range = blocks_of_stage(plan, stage, model.blocks().size());
    for (size_t b = range.first; b < range.last; ++b)
      for (const mesh::ParamId& id : model::named_parameters(model.blocks()[b]->card()))
        for (int32_t k = id.first; k < id.first + id.count; ++k) ++uses[static_cast<size_t>(k)];
  }
  return uses;
}

bool touch(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().is_alias_of(b.storage()) && a.storage_offset() + a.numel() == b.storage_offset();
}

}  // namespace

std::vector<std::string> sharding_axes(const Plan& plan) {
  return plan.zero > 0 ? std::vector<std::string>{"shard", "cp"} : std::vector<std::string>{};
}

std::vector<std::string> replicating_axes(const Plan& plan) {
  std::vector<std::string> axes{"dp", "ep"};
  if (!islands_step_separately(plan)) axes.insert(axes.begin(), "island");
  if (plan.zero == 0) axes.insert(axes.end(), {"shard", "cp"});
  return axes;
}

ShardUnitRules shard_unit_rules(const Plan& plan, bool whole_parameters, int64_t min_elements) {
  return {.ranks = plan.zero > 0 ? plan.mesh.extent("shard") * plan.mesh.extent("cp") : 1,
          .min_elements = plan.zero == 3 ? 0 : min_elements,
          .whole_parameters = whole_parameters};
}

ParameterStore::ParameterStore(Parts parts) : shard_(model_shard(parts.model, parts.plan, parts.world.rank())) {
  comm::World& world = parts.world;
  const int rank = world.rank();
  const auto peers = [&](const std::vector<std::string>& axes) {
    return axes.empty() ? std::vector<int>{rank} : parts.plan.mesh.peers_along(rank, axes);
  };
  // Gradients leave when they are complete, which no rank can tell of the others: so they have an order of their own.
  comm::Group* shard_group = group_of_several(world, peers(sharding_axes(parts.plan)), "parameters");
  comm::Group* gradient_group = group_of_several(world, peers(sharding_axes(parts.plan)), "gradients");
  std::vector<std::string> model_axes = sharding_axes(parts.plan);
  model_axes.insert(model_axes.begin(), {"pp", "tp"});
  model_group_ = group_of_several(world, peers(model_axes));

  const ShardUnitRules rules = shard_unit_rules(parts.plan, parts.whole_parameters, parts.min_unit_elements);
  ShardedWeights::Parts weights{.layout = shard_.layout,
                                .units = make_shard_units(parts.model, shard_.layout, rules),
                                .placements = {},
                                .shard_group = shard_group,
                                .gathers = parts.plan.zero == 3 && shard_group,
                                .master = parts.master,
                                .compute = parts.compute};
  for (const model::Parameter& parameter : parts.model.parameters()) weights.placements.push_back(placement_of(parts.plan, parameter.name));

  std::vector<bool> chosen;
  for (size_t i = 0; i < parts.trained.size(); ++i) chosen.push_back(parts.trained[i] && shard_.parameters[i].here);
  const std::vector<int32_t> uses = uses_here(parts.model, parts.plan, shard_);
  GradientReducer::Parts reducer{
      .layout = mesh::trainable_layout(shard_.layout, chosen),
      .uses = {},
      .copies = {},
      .units = {},
      .shard_group = gradient_group,
      .memory = group_of_several(world, peers(replicating_axes(parts.plan))),
      .options = parts.gradients.device(parts.master.device()),
      .whole = parts.plan.zero < 2,
      .accumulate_unsharded = parts.accumulate_unsharded,
      .in_order = parts.plan.stage_blocks.size() <= 1,  // micro-batches of a pipeline come in any order
  };
  if (gradient_group) reducer.memory = gradient_group;
  std::vector<size_t> parameters;  // of each gradient piece
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) continue;
    parameters.push_back(i);
    reducer.uses.push_back(uses[i]);
    reducer.copies.push_back(group_of_several(world, shard_.parameters[i].copies));
  }
  reducer.units = select_units(weights.layout, weights.units, chosen);
  reducer.reuse_memory = parts.reuse_gradient_memory && !reducer.memory &&
                         std::none_of(reducer.copies.begin(), reducer.copies.end(), [](auto* c) { return c; });

  const std::vector<ShardSlice> kept_weights = shard_slices(weights.layout, weights.units, shard_group ? shard_group->rank() : 0);
  const std::vector<ShardSlice> kept_gradients = shard_slices(reducer.layout, reducer.units, shard_group ? shard_group->rank() : 0);
  {
    const base::MemoryScope purpose("parameters");
    weights_ = std::make_unique<ShardedWeights>(weights);
  }
  const mesh::FlatLayout gradient_layout = reducer.layout;
  const base::MemoryScope purpose("gradients");
  reducer_ = std::make_unique<GradientReducer>(std::move(reducer));
  if (gradient_layout.pieces.size() < shard_.layout.pieces.size())
    chosen_ = mesh::make_trainable_gradients(shard_.layout, chosen, *reducer_);

  size_t next = 0;  // of the gradients, which leave some out but keep the order
  for (const ShardSlice& part : kept_weights) {
    const auto parameter = static_cast<size_t>(part.piece);
    const auto& piece = shard_.layout.pieces[parameter];
    const auto shaped = [&](const at::Tensor& flat) { return part.elements.length() == piece.elements ? flat.view(piece.shape) : flat; };
    const int64_t n = part.elements.length();
    pieces_.push_back({piece.name, parameter, part.elements, shaped(weights_->shard(part.unit).narrow(0, part.offset, n)), {}});
    if (!chosen[parameter]) continue;
    const ShardSlice& of_gradient = kept_gradients.at(next++);
    CAIRN_CHECK(parameters[static_cast<size_t>(of_gradient.piece)] == parameter && of_gradient.elements == part.elements,
                "{} is kept otherwise than its gradient", parts.model.parameters()[parameter].name);
    pieces_.back().gradient = shaped(reducer_->shard(of_gradient.unit).narrow(0, of_gradient.offset, n));
    const double counts = 1.0 / static_cast<double>(shard_.parameters[parameter].copies.size());
    const at::Tensor flat = pieces_.back().gradient.view({-1});
    if (squares_.empty() || squares_.back().counts != counts) squares_.push_back({counts, {}});
    std::vector<at::Tensor>& runs = squares_.back().runs;
    // Units stay apart on a GPU, so that sums are made alike whether their memory is lent or not: of widths that are multiples of 4 with
    // the same bits.
    if (!runs.empty() && touch(runs.back(), flat) && (flat.is_cpu() || of_gradient.offset > 0))
      runs.back() = runs.back().as_strided({runs.back().numel() + n}, {1}, runs.back().storage_offset());
    else
      runs.push_back(flat);
  }
}

at::Tensor ParameterStore::sum_of_squares() const {
  at::Tensor sum;
  for (const auto& [counts, runs] : squares_) {
    at::Tensor one = kernels::sum_of_squares(runs);
    if (counts != 1) one = one * counts;
    sum = sum.defined() ? sum + one : one;
  }
  if (!sum.defined()) sum = at::zeros({}, at::kDouble);
  if (model_group_) model_group_->all_reduce(sum, comm::Reduce::sum, {comm::Purpose::gradient, "gradient norm"}).wait();
  return sum;
}

void ParameterStore::load(size_t parameter, const at::Tensor& whole) const {
  for (const ParameterSlice& piece : pieces_) {
    if (piece.parameter != parameter) continue;
    const at::Tensor local = cut_out(whole, shard_.parameters[parameter].local_shard).reshape({-1});
    piece.value.view({-1}).copy_(local.narrow(0, piece.elements.begin, piece.elements.length()));
  }
}

}  // namespace cairn::parallel
