#include "train/offload/offload_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include <c10/util/accumulate.h>

#include "base/check.h"
#include "base/text.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "train/parameter_piece.h"
#include "train/settings.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

using memory::TierKind;

constexpr int64_t kFragments = 8;  // an eighth of the working buffers, since they are not all of one size

// Counts what a rule keeps, by group of pieces.
class CountedStateMemory final : public optim::StateMemory {
 public:
  at::Tensor zeros(int64_t group, at::IntArrayRef sizes, const at::TensorOptions& options) override {
    of_group[group] += memory::sealed_bytes(c10::multiply_integers(sizes) * static_cast<int64_t>(options.dtype().itemsize()));
    return at::empty(sizes, options.device(at::kMeta));
  }
  std::map<int64_t, int64_t> of_group;
};

// A part of the state that is moved at a time.
struct MovedGroup {
  std::string name;
  int64_t unit = 0, optimizer = 0;
};

// One rank's part of one unit.
struct UnitPart {
  std::string name;
  int64_t elements = 0, whole = 0, trained = 0;
  bool stays = false;  // gathered until the next update
};

// The units and pieces of a rank, without memory.
struct RankOutline {
  std::vector<UnitPart> units;
  std::vector<optim::ParameterPiece> pieces;  // trained
  std::vector<int64_t> units_of;              // by piece
};

RankOutline outline_of(const Settings& s, const model::Model& model, const parallel::Plan& plan, const planner::StepRules& rules,
                       int rank) {
  const parallel::ModelShard shard = parallel::model_shard(model, plan, rank);
  const parallel::ShardUnitRules cut = parallel::shard_unit_rules(plan, rules.whole_parameters, min_unit_elements(s.layout.memory, rules));
  const std::vector<parallel::ShardUnit> units = parallel::make_shard_units(model, shard.layout, cut);
  int me = 0;
  if (cut.ranks > 1) {
    const std::vector<int> peers = plan.mesh.peers_along(rank, parallel::sharding_axes(plan));
    me = static_cast<int>(std::find(peers.begin(), peers.end(), rank) - peers.begin());
  }
  RankOutline outline;
  for (const parallel::ShardUnit& unit : units)
    outline.units.push_back({shard.layout.pieces[static_cast<size_t>(unit.first)].name, unit.part_of(me).length(), unit.elements,
                             /*trained=*/0, unit.of_many_layers});
  const auto dtype = s.train.parameters == Precision::bf16 ? at::kBFloat16 : at::kFloat;
  for (const parallel::ShardSlice& slice : parallel::shard_slices(shard.layout, units, me)) {
    const auto parameter = static_cast<size_t>(slice.piece);
    if (!rules.trained[parameter] || !shard.parameters[parameter].here) continue;
    const auto& piece = shard.layout.pieces[parameter];
    const int64_t n = slice.elements.length();
    const std::vector<int64_t> sizes = n == piece.elements ? std::vector<int64_t>(piece.shape) : std::vector<int64_t>{n};
    const at::Tensor nowhere = at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta));
    outline.pieces.push_back(make_piece(model.parameters()[parameter], nowhere, nowhere));
    outline.units_of.push_back(slice.unit);
    outline.units[static_cast<size_t>(slice.unit)].trained += n;
  }
  return outline;
}

// Groups in the order in which they are updated.
std::vector<MovedGroup> groups_of(const Settings& s, RankOutline& outline) {
  if (!step_method(s).needs.optimizer) return {};
  assign_groups(outline.pieces, outline.units_of, s.layout.memory.group_elements);
  CountedStateMemory sizes;
  std::vector<MovedGroup> groups;
  for (size_t i = 0; i < outline.pieces.size(); ++i)
    if (groups.empty() || outline.pieces[i].group != outline.pieces[i - 1].group)
      groups.push_back({outline.pieces[i].name, outline.units_of[i]});
  (void)optim::make_optimizer(s.optim, outline.pieces, &sizes);
  for (size_t i = 0; i < groups.size(); ++i) groups[i].optimizer = sizes.of_group[static_cast<int64_t>(i)];
  return groups;
}

}  // namespace

int64_t min_unit_elements(const parallel::MemoryOptions& memory, const planner::StepRules& rules) {
  const bool by_block = memory.parameters != TierKind::device || memory.gradients != TierKind::device;
  return by_block ? 0 : rules.bucket_bytes / 4;
}

void assign_groups(std::vector<optim::ParameterPiece>& pieces, const std::vector<int64_t>& units, int64_t group_elements) {
  int64_t group = -1, elements = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t n = pieces[i].parameter.numel();
    if (i == 0 || units[i] != units[i - 1] || elements + n > group_elements) {
      ++group;
      elements = 0;
    }
    elements += n;
    pieces[i].group = group;
  }
}

OffloadPlan offload_plan(const Settings& s, const model::Model& model, const parallel::Plan& plan, const planner::StepRules& rules,
                         int rank) {
  const parallel::MemoryOptions& m = s.layout.memory;
  RankOutline outline = outline_of(s, model, plan, rules, rank);
  const std::vector<MovedGroup> groups = groups_of(s, outline);
  const int64_t master = s.train.parameters == Precision::bf16 ? 2 : 4, compute = parallel::compute_bytes(plan);
  const bool gathers = m.parameters != TierKind::device || (plan.zero == 3 && plan.mesh.extent("shard") * plan.mesh.extent("cp") > 1);
  const bool sharded_sums = m.gradients != TierKind::device || plan.zero >= 2;
  const auto sealed = [](int64_t bytes) { return bytes > 0 ? memory::sealed_bytes(bytes) : 0; };
  const auto is_on_disk = [](TierKind tier, int64_t bytes) { return tier == TierKind::disk ? bytes : 0; };
  int64_t data_ranks = 1;
  for (const std::string& axis : parallel::kSampleAxes) data_ranks *= plan.mesh.extent(axis);
  const int64_t samples = (s.train.global_batch + data_ranks - 1) / data_ranks;
  const int64_t passes = plan.micro_batches > 0 ? plan.micro_batches : (samples + plan.micro_batch - 1) / plan.micro_batch;
  OffloadPlan found;
  const auto kept = [&](TierKind tier) -> OffloadPlan::Bytes& { return found.kept[static_cast<size_t>(tier)]; };
  int64_t largest_whole = 0, largest_part = 0, all = 0, staying = 0;
  for (const UnitPart& unit : outline.units) {
    const int64_t parameters = m.parameters == TierKind::device ? unit.elements * master : sealed(unit.elements * master);
    const int64_t gradients = m.gradients == TierKind::device ? unit.trained * 4 : sealed(unit.trained * 4);
    kept(m.parameters).parameters += parameters;
    kept(m.gradients).gradients += gradients;
    largest_whole = std::max(largest_whole, unit.whole);
    largest_part = std::max(largest_part, parameters);
    all += unit.whole;
    if (unit.stays) staying += unit.whole;
    found.read_per_step += is_on_disk(m.parameters, parameters) * (2 * passes + 1) + is_on_disk(m.gradients, gradients) * 2;
    found.written_per_step += is_on_disk(m.parameters, parameters) + is_on_disk(m.gradients, gradients);
    found.host_least = std::max(found.host_least, is_on_disk(m.parameters, parameters));
  }
  if (!gathers && !(plan.zero == 0 && master == compute))
    kept(TierKind::device).parameters += all * compute - (master == compute ? kept(TierKind::device).parameters : 0);
  for (const MovedGroup& group : groups) {
    const UnitPart& unit = outline.units[static_cast<size_t>(group.unit)];
    kept(m.optimizer).optimizer += group.optimizer;
    found.read_per_step += is_on_disk(m.optimizer, group.optimizer);
    found.written_per_step += is_on_disk(m.optimizer, group.optimizer);
    int64_t moved = 0, records = 0;
    for (const int64_t bytes : {is_on_disk(m.optimizer, group.optimizer), is_on_disk(m.parameters, sealed(unit.elements * master)),
                                is_on_disk(m.gradients, sealed(unit.trained * 4))}) {
      moved += bytes;
      records += bytes > 0 ? 1 : 0;
    }
    if (records > 1) moved += moved / 2;  // they may lie so that what is free is not in one piece
    if (moved >= found.host_least) found.largest = group.name;
    found.host_least = std::max(found.host_least, moved);
  }
  const int64_t ahead = m.read_ahead > 0 ? 1 : 0;
  const int64_t in_passes = is_on_disk(m.parameters, largest_part) * (m.read_ahead + 2) + is_on_disk(m.gradients, 2 * largest_part);
  found.host_working = std::max(found.host_least * (2 + ahead), in_passes);
  found.host_working += found.host_working / kFragments / memory::kPageBytes * memory::kPageBytes;
  const bool whole_stages = plan.mesh.extent("pp") > 1;  // a stage is gathered as one
  if (gathers) found.gathered = whole_stages ? all * compute : std::min(all, staying + largest_whole * (m.prefetch_blocks + 2)) * compute;
  found.device_working = found.gathered + (sharded_sums ? 2 * largest_whole * 4 : 0);
  return found;
}

void check_offload(const OffloadPlan& plan, const parallel::MemoryOptions& m) {
  memory::TierOptions budgets{
      .device_bytes = parallel::budget_bytes("memory.device_budget", m.device_budget).value_or(plan.device_needed()),
      .host_bytes = host_bytes(plan, m)};
  budgets.swap.bytes = disk_bytes(plan, m);
  const OffloadPlan::Bytes& device = plan.of(TierKind::device);
  const std::string on_device = fmt::format("the device ({} of parameters, {} of gradients, {} of optimizer state, {} of blocks at work)",
                                            base::human_bytes(device.parameters), base::human_bytes(device.gradients),
                                            base::human_bytes(device.optimizer), base::human_bytes(plan.device_working));
  const int64_t in_host = plan.of(TierKind::host).total();
  const std::string on_host = fmt::format(
      "{}{}",
      in_host > 0 ? fmt::format("what lies in host memory ({}){}", base::human_bytes(in_host), plan.host_least > 0 ? ", beside " : "") : "",
      plan.host_least > 0 ? fmt::format("the largest unit that lies on disk ({}, {})", plan.largest, base::human_bytes(plan.host_least))
                          : "");
  const std::vector<memory::TierNeed> needs{{TierKind::device, plan.device_needed(), on_device},
                                            {TierKind::host, plan.host_needed(), on_host},
                                            {TierKind::disk, plan.of(TierKind::disk).total(), "what lies on disk"}};
  memory::check_budgets(budgets, needs);
}

int64_t host_bytes(const OffloadPlan& plan, const parallel::MemoryOptions& m) {
  return parallel::budget_bytes("memory.host_budget", m.host_budget).value_or(plan.of(TierKind::host).total() + plan.host_working);
}

int64_t disk_bytes(const OffloadPlan& plan, const parallel::MemoryOptions& m) {
  return parallel::budget_bytes("memory.disk_budget", m.disk_budget).value_or(plan.of(TierKind::disk).total());
}

}  // namespace cairn::train
