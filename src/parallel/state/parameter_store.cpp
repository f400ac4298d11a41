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
  std::vector<std::string> axes{"dp"};
  if (!places_experts(plan)) axes.emplace_back("ep");
  if (!islands_step_separately(plan)) axes.insert(axes.begin(), "island");
  if (plan.zero == 0) axes.insert(axes.end(), {"shard", "cp"});
  return axes;
}

ShardUnitRules shard_unit_rules(const Plan& plan, bool whole_parameters, int64_t min_elements) {
  return {.ranks = plan.zero > 0 ? plan.mesh.extent("shard") * plan.mesh.extent("cp") : 1,
          .min_elements = plan.zero == 3 ? 0 : min_elements,
          .by_owner = plan.partition == Partition::owner,
          .whole_parameters = whole_parameters};
}

// The groups of ranks that a store works with; null: this rank alone.
struct ParameterStore::Groups {
  comm::Group* parameters;  // ranks that shard the same state, for parameters
  comm::Group* gradients;   // the same ranks. Gradients complete in an order of their own, so they have a communicator of their own
  comm::Group* replicas;    // ranks that hold the same shards in other replicas

  int shard_rank() const { return parameters ? parameters->rank() : 0; }
};

ParameterStore::ParameterStore(Parts parts)
    : swapper_(std::move(parts.swapped.swapper)),
      sums_by_unit_(swapper_ != nullptr),
      shard_(model_shard(parts.model, parts.plan, parts.world.rank())) {
  const int rank = parts.world.rank();
  const auto group = [&](const std::vector<std::string>& axes, std::string_view name = "") {
    return group_of_several(parts.world, axes.empty() ? std::vector<int>{rank} : parts.plan.mesh.peers_along(rank, axes), name);
  };
  const std::vector<std::string> sharding = sharding_axes(parts.plan);
  Groups groups{group(sharding, "parameters"), group(sharding, "gradients"), nullptr};
  std::vector<std::string> of_model = model_axes(parts.plan);
  of_model.insert(of_model.end(), sharding.begin(), sharding.end());
  model_group_ = group(of_model);
  groups.replicas = group(replicating_axes(parts.plan));

  std::vector<bool> trained;  // here: not where the rank has none of it, because of its stage or because its experts are elsewhere
  for (size_t i = 0; i < parts.trained.size(); ++i) trained.push_back(parts.trained[i] && shard_.layout.pieces[i].elements > 0);
  const ShardUnitRules rules = shard_unit_rules(parts.plan, parts.whole_parameters, parts.min_unit_elements);
  const std::vector<ShardUnit> units = make_shard_units(parts.model, shard_.layout, rules);
  make_weights(parts, groups, units);
  const base::MemoryScope purpose("gradients");
  trained_ = changes_ = trained;
  make_reducer(parts, groups, units, trained);
  make_pieces(parts, shard_slices(shard_.layout, units, groups.shard_rank()), trained);
}

void ParameterStore::make_weights(Parts& parts, const Groups& groups, const std::vector<ShardUnit>& units) {
  const bool swaps = swapper_ && parts.swapped.parameters != memory::TierKind::device;
  CAIRN_CHECK(!swaps || parts.plan.zero == 0 || parts.plan.zero == 3, "swapped parameters with ZeRO {}", parts.plan.zero);
  ShardedWeights::Parts weights{.layout = shard_.layout,
                                .units = units,
                                .placements = {},
                                .shard_group = groups.parameters,
                                .gathers = swaps || (parts.plan.zero == 3 && groups.parameters),
                                .swapped = {},
                                .master = parts.master,
                                .compute = parts.compute};
  for (const model::Parameter& parameter : parts.model.parameters()) weights.placements.push_back(placement_of(parts.plan, parameter.name));
  if (swaps)
    weights.swapped = {
        .swapper = swapper_.get(), .home = parts.swapped.parameters, .read_ahead = parts.swapped.read_ahead, .log = parts.swapped.log};
  weights.swapped.gathered_bytes_max = parts.swapped.gathered_bytes_max;
  const base::MemoryScope purpose("parameters");
  weights_ = std::make_unique<ShardedWeights>(std::move(weights));
}

void ParameterStore::make_reducer(const Parts& parts, const Groups& groups, const std::vector<ShardUnit>& units,
                                  const std::vector<bool>& trained) {
  const std::vector<int32_t> uses = uses_here(parts.model, parts.plan, shard_);
  GradientReducer::Parts reducer{
      .layout = mesh::trainable_layout(shard_.layout, trained),
      .uses = {},
      .copies = {},
      .units = select_units(shard_.layout, units, trained),
      .shard_group = groups.gradients,
      .memory = groups.gradients ? groups.gradients : groups.replicas,
      .options = parts.gradients.device(parts.master.device()),
      .unsharded = parts.plan.zero < 2,
      .accumulate_unsharded = parts.accumulate_unsharded,
      .in_order = parts.plan.stage_blocks.size() <= 1,  // micro-batches of a pipeline come in any order
  };
  if (swapper_ && parts.swapped.gradients != memory::TierKind::device) {
    reducer.swapper = swapper_.get();
    reducer.home = parts.swapped.gradients;
    reducer.accumulate_unsharded = false;
  }
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!trained[i]) continue;
    reducer.uses.push_back(uses[i]);
    // Along ep a communicator of its own: rows of tokens must not queue behind gradients.
    reducer.copies.push_back(group_of_several(parts.world, shard_.parameters[i].copies, places_experts(parts.plan) ? "copies" : ""));
    if (!reducer.memory && places_experts(parts.plan)) reducer.memory = reducer.copies.back();
  }
  reducer.reuse_memory = parts.reuse_gradient_memory && !reducer.memory &&
                         std::none_of(reducer.copies.begin(), reducer.copies.end(), [](auto* c) { return c; });
  gradient_slices_ = shard_slices(reducer.layout, reducer.units, groups.shard_rank());
  const bool all_trained = reducer.layout.pieces.size() == shard_.layout.pieces.size();
  reducer_ = std::make_unique<GradientReducer>(std::move(reducer));
  if (!all_trained) trainable_sink_ = mesh::make_trainable_gradients(shard_.layout, trained, *reducer_);
}

void ParameterStore::make_pieces(const Parts& parts, const std::vector<ShardSlice>& slices, const std::vector<bool>& trained) {
  std::vector<size_t> parameters;  // of each gradient piece
  for (size_t i = 0; i < trained.size(); ++i)
    if (trained[i]) parameters.push_back(i);
  size_t next = 0;  // of the gradients, which leave some parameters out but keep the order
  for (const ShardSlice& slice : slices) {
    const auto parameter = static_cast<size_t>(slice.piece);
    const auto& piece = shard_.layout.pieces[parameter];
    const int64_t n = slice.elements.length();
    const auto shaped = [&](const at::Tensor& flat) { return n == piece.elements ? flat.view(piece.shape) : flat; };
    pieces_.push_back(
        {piece.name, parameter, slice.unit, slice.elements, shaped(weights_->shard(slice.unit).narrow(0, slice.offset, n)), {}});
    if (!trained[parameter]) continue;
    const ShardSlice& of_gradient = gradient_slices_.at(next++);
    CAIRN_CHECK(parameters[static_cast<size_t>(of_gradient.piece)] == parameter && of_gradient.elements == slice.elements,
                "{} is sharded otherwise than its gradient", parts.model.parameters()[parameter].name);
    pieces_.back().gradient = shaped(reducer_->shard(of_gradient.unit).narrow(0, of_gradient.offset, n));
    add_square(pieces_.back().gradient.view({-1}), 1.0 / static_cast<double>(shard_.parameters[parameter].copies.size()),
               of_gradient.offset > 0);
  }
}

void ParameterStore::set_frozen(const std::vector<bool>& frozen, bool rule_writes) {
  CAIRN_CHECK(frozen.size() == trained_.size(), "{} marks for {} parameters", frozen.size(), trained_.size());
  std::vector<bool> active, of_trained;
  for (size_t i = 0; i < frozen.size(); ++i) {
    active.push_back(trained_[i] && !frozen[i]);
    if (trained_[i]) of_trained.push_back(active.back());
  }
  changes_ = rule_writes ? trained_ : active;
  const bool all = active == trained_;
  reducer_->set_active(all ? std::vector<bool>() : of_trained);
  const bool all_trained = of_trained.size() == trained_.size();
  trainable_sink_ = all && all_trained ? nullptr : mesh::make_trainable_gradients(shard_.layout, trained_, *reducer_, active);
}

// Neighbours in memory become one run. On a GPU, and where units may be swapped, runs end with their unit, so that the sums are bitwise
// identical with and without gradient buffer reuse (for widths that are multiples of 4).
void ParameterStore::add_square(const at::Tensor& gradient, double weight, bool inside_unit) {
  if (squares_.empty() || squares_.back().weight != weight) squares_.push_back({weight, {}});
  std::vector<at::Tensor>& runs = squares_.back().runs;
  if (!runs.empty() && touch(runs.back(), gradient) && ((gradient.is_cpu() && !sums_by_unit_) || inside_unit))
    runs.back() = runs.back().as_strided({runs.back().numel() + gradient.numel()}, {1}, runs.back().storage_offset());
  else
    runs.push_back(gradient);
}

// The same sum over runs that may be away.
at::Tensor ParameterStore::sum_by_unit(const std::vector<at::Tensor>& runs) const {
  at::Tensor sum;
  for (size_t i = 0; i < runs.size(); ++i) {
    swapper_->prefetch(runs[i]);
    if (i + 1 < runs.size()) swapper_->prefetch(runs[i + 1]);
    const auto there = swapper_->hold(runs[i], mesh::TensorSwapper::Access::read);
    const at::Tensor one = kernels::sum_of_squares(runs[i]);
    sum = sum.defined() ? sum + one : one;
  }
  return sum;
}

at::Tensor ParameterStore::sum_of_squares() const {
  at::Tensor sum;
  for (const auto& [weight, runs] : squares_) {
    at::Tensor one = sums_by_unit_ ? sum_by_unit(runs) : kernels::sum_of_squares(runs);
    if (weight != 1) one = one * weight;
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
    const auto there = mesh::hold(swapper_.get(), piece.value, mesh::TensorSwapper::Access::update);
    piece.value.view({-1}).copy_(local.narrow(0, piece.elements.begin, piece.elements.length()));
  }
}

}  // namespace cairn::parallel
