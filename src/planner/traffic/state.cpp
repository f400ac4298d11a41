// Traffic of gradients and parameters: parallel/state/gradient_reducer.h, sharded_weights.h and sync/all_reduce.cpp do it.
#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/aten.h"
#include "mesh/trainable_gradients.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "model/trainable.h"
#include "parallel/layout/model_shard.h"
#include "parallel/stage_run.h"
#include "parallel/state/active_unit.h"
#include "parallel/state/parameter_store.h"
#include "planner/traffic/table.h"
#include "sync/needs.h"

namespace cairn::planner {
namespace {

constexpr int64_t kGradientBytes = 4;  // gradients are summed in fp32

// One rank for each part of the model; the rest of the mesh repeats them.
struct ModelRanks {
  explicit ModelRanks(const TrafficCase& step) : shard_degree(step.plan.zero > 0 ? step.extent(parallel::sharding_axes(step.plan)) : 1) {
    const std::vector<int> ranks = step.plan.mesh.peers_along(0, parallel::model_axes(step.plan));
    for (const int rank : ranks) shards.push_back(parallel::model_shard(step.model, step.plan, rank));
    replicas = step.plan.mesh.size() / static_cast<int64_t>(ranks.size());
    first = ranks;
  }
  std::vector<int> first;
  std::vector<parallel::ModelShard> shards;
  int64_t replicas = 1;      // of each
  int64_t shard_degree = 1;  // ranks that shard a part's state
};

std::vector<bool> chosen_of(const TrafficCase& step, const parallel::ModelShard& shard) {
  std::vector<bool> chosen;
  for (size_t i = 0; i < shard.parameters.size(); ++i)
    chosen.push_back((step.rules.trained.empty() || step.rules.trained[i]) && shard.parameters[i].here);
  return chosen;
}

std::vector<parallel::ShardUnit> units_of(const TrafficCase& step, const parallel::ModelShard& shard) {
  return parallel::make_shard_units(
      step.model, shard.layout,
      parallel::shard_unit_rules(step.plan, step.rules.whole_parameters, step.rules.bucket_bytes / kGradientBytes));
}

// How often each unit's gradients are reduced in a step.
int64_t rounds(const TrafficCase& step, int64_t shard_degree) {
  const bool whole = step.plan.zero < 2 || shard_degree == 1, in_order = step.plan.stage_blocks.size() <= 1;
  const bool stays_unsharded = whole || !in_order || (step.rules.accumulate_unsharded && step.max_passes > 1);
  return stays_unsharded ? 1 : std::max<int64_t>(1, step.max_passes);
}

// Buckets into which sync/all_reduce.cpp puts the gradients of one shard: runs of neighbours in memory, up to a size.
int64_t buckets(const TrafficCase& step, const mesh::FlatLayout& layout, const std::vector<parallel::ShardUnit>& units, int shard_rank,
                bool whole) {
  int64_t count = 0, begin = -1, bytes = 0, next = 0;
  std::vector<std::pair<int64_t, int64_t>> places;  // of each slice: where it begins, and its elements
  std::vector<int64_t> unit_begin;
  for (const parallel::ShardUnit& unit : units) {
    unit_begin.push_back(whole ? unit.offset + unit.part_of(shard_rank).begin : next);
    next += unit.part_of(shard_rank).length();
  }
  for (const parallel::ShardSlice& part : parallel::shard_slices(layout, units, shard_rank))
    places.emplace_back(unit_begin[static_cast<size_t>(part.unit)] + part.offset, part.elements.length());
  for (size_t i = places.size(); i-- > 0;) {
    const auto [at, elements] = places[i];
    if (at + elements != begin || bytes + elements * kGradientBytes > step.rules.bucket_bytes) {
      ++count;
      bytes = 0;
    }
    begin = at;
    bytes += elements * kGradientBytes;
  }
  return count;
}

// Along which axes several ranks of one replica have a gradient of the same parameter, and why.
struct Copies {
  std::string axis, reason;
};
Copies copies_in_words(const TrafficCase& step, const std::vector<int>& ranks) {
  const auto differ = [&](const char* axis) {
    const auto at = [&](int rank) { return step.plan.mesh.coordinate(rank, axis); };
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return at(rank) != at(ranks.front()); });
  };
  std::vector<std::string> axes;
  for (const std::string& axis : parallel::model_axes(step.plan))
    if (differ(axis.c_str())) axes.push_back(axis);
  if (axes == std::vector<std::string>{"tp"})
    return {"tp", "ranks along tp hold the same of it and see different tokens or heads: its gradient is the sum of theirs"};
  if (axes == std::vector<std::string>{"pp"}) return {"pp", "blocks of several stages use it: its gradient is the sum of theirs"};
  if (axes == std::vector<std::string>{"ep"})
    return {"ep", "it is no expert: all ranks along ep hold it and see different samples, and its gradient is the sum of theirs"};
  return {fmt::format("{}", fmt::join(axes, "+")), "ranks along these axes hold the same of it: its gradient is the sum of theirs"};
}

// How often each unit is all-gathered in a step (ZeRO 3): replays what parallel/stage_run.cpp fetches and releases.
class UnitGathers {
 public:
  // `pieces`: by parameter, whether it is among the pieces of the units. `read`: whether these passes read it.
  UnitGathers(const TrafficCase& step, const std::vector<parallel::ShardUnit>& units, const std::vector<bool>& pieces,
              const std::vector<bool>& read)
      : step_(step), times_(units.size()), here_(units.size()) {
    std::vector<size_t> unit_of_piece, unit_of(pieces.size());
    for (size_t u = 0; u < units.size(); ++u) unit_of_piece.resize(static_cast<size_t>(units[u].last), u);
    for (size_t i = 0, next = 0; i < pieces.size(); ++i)
      if (pieces[i]) unit_of[i] = unit_of_piece[next++];
    for (const auto& block : step.model.blocks()) {
      std::vector<size_t>& of = named_.emplace_back();
      for (const mesh::ParamId& id : model::named_parameters(block->card()))
        if (const auto first = static_cast<size_t>(id.first); read[first]) of.push_back(unit_of[first]);
    }
  }

  int64_t times(size_t unit) const { return times_[unit]; }

  // The blocks of a pipeline's stages are fetched once and stay.
  void stages(const std::vector<int>& stages) {
    for (const int stage : stages) {
      const parallel::BlockRange range = parallel::blocks_of_stage(step_.plan, stage, named_.size());
      for (size_t i = range.first; i < range.last; ++i) fetch(named_[i]);
    }
  }

  // A pass without gradients.
  void forward_pass() {
    const auto prefetch = static_cast<size_t>(step_.rules.prefetch_blocks);
    for (size_t i = 0; i < named_.size(); ++i) {
      fetch(named_[i]);
      fetch(next(i, true, false, prefetch));
      release(named_[i], next(i, true, false, std::max<size_t>(1, prefetch)));
    }
  }

  void pass(bool recomputed) {
    const size_t n = named_.size(), prefetch = static_cast<size_t>(step_.rules.prefetch_blocks);
    for (int round = 0; round < (recomputed && step_.rules.recompute_stage ? 2 : 1); ++round)
      for (size_t i = 0; i < n; ++i) {
        fetch(named_[i]);
        fetch(next(i, true, recomputed, prefetch));
        if (i + 1 < n) release(named_[i], next(i, true, recomputed, std::max<size_t>(1, prefetch)));
      }
    for (size_t i = n; i-- > 0;) {
      if (read_back(i, recomputed)) fetch(named_[i]);
      fetch(next(i, false, recomputed, prefetch));
      release(named_[i], next(i, false, recomputed, std::max<size_t>(1, prefetch)));
    }
  }

 private:
  // Units of the next blocks in the direction of the pass: parallel::weights_ahead.
  std::vector<size_t> next(size_t i, bool forward, bool recomputed, size_t blocks) const {
    std::vector<size_t> units;
    for (size_t k = 1; k <= blocks; ++k) {
      if (forward ? i + k >= named_.size() : k > i) break;
      const size_t at = forward ? i + k : i - k;
      if (forward || read_back(at, recomputed)) units.insert(units.end(), named_[at].begin(), named_[at].end());
    }
    return units;
  }
  bool read_back(size_t block, bool recomputed) const {
    if (recomputed && !step_.rules.recompute.empty() && step_.rules.recompute[block]) return true;
    return parallel::backward_needs_weights(step_.model.blocks()[block]->card());
  }
  void fetch(const std::vector<size_t>& units) {
    for (const size_t u : units) {
      if (!here_[u]) ++times_[u];
      here_[u] = true;
    }
  }
  void release(const std::vector<size_t>& units, const std::vector<size_t>& next) {
    for (const size_t u : units)
      if (std::find(next.begin(), next.end(), u) == next.end()) here_[u] = false;
  }

  const TrafficCase& step_;
  std::vector<int64_t> times_;
  std::vector<bool> here_;
  std::vector<std::vector<size_t>> named_;  // units of each block's parameters
};

}  // namespace

void add_gradients(const TrafficCase& step, TrafficTable& table) {
  const ModelRanks ranks(step);
  const std::vector<std::string> replicating = parallel::replicating_axes(step.plan), keeping = parallel::sharding_axes(step.plan);
  const int64_t peers = step.extent(replicating), often = rounds(step, ranks.shard_degree);
  const bool whole = step.plan.zero < 2 || ranks.shard_degree == 1;
  for (size_t r = 0; r < ranks.shards.size(); ++r) {
    const parallel::ModelShard& shard = ranks.shards[r];
    const std::vector<bool> chosen = chosen_of(step, shard);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const parallel::ParameterShard& one = shard.parameters[i];
      if (!chosen[i] || one.copies.size() < 2 || one.copies.front() != ranks.first[r]) continue;
      const auto copies = static_cast<int64_t>(one.copies.size());
      const auto [axis, reason] = copies_in_words(step, one.copies);
      table.add({.what = "gradient of " + folded_name(step.model.parameters()[i].name),
                 .axis = axis,
                 .collective = "all_reduce",
                 .shape = shard.layout.pieces[i].shape,
                 .times = ranks.replicas * often,
                 .bytes = ranks.replicas * often * all_reduce_bytes(shard.layout.pieces[i].elements * kGradientBytes, copies),
                 .purpose = comm::Purpose::gradient,
                 .reason = reason});
    }
    const std::vector<parallel::ShardUnit> units = parallel::select_units(shard.layout, units_of(step, shard), chosen);
    const mesh::FlatLayout layout = mesh::trainable_layout(shard.layout, chosen);
    if (ranks.shard_degree > 1)
      for (const parallel::ShardUnit& unit : units)
        table.add(
            {.what = "gradients, to who keeps them",
             .axis = step.axis_name(keeping),
             .collective = "reduce_scatter",
             .shape = {unit.elements},
             .times = often * ranks.replicas / ranks.shard_degree,
             .bytes = often * (ranks.replicas / ranks.shard_degree) * scatter_bytes(unit.elements * kGradientBytes, ranks.shard_degree),
             .purpose = comm::Purpose::gradient,
             .reason = fmt::format("zero {}: each of {} ranks keeps a part of the state, and needs its gradient alone", step.plan.zero,
                                   ranks.shard_degree)});
    if (peers == 1) continue;
    if (const auto rule = step.plan.sync.find("dp"); rule != step.plan.sync.end() && !sync::needs_of(rule->second).every_gradient) {
      table.add_unpredicted("gradients of all replicas", step.axis_name(replicating), comm::Purpose::gradient,
                            fmt::format("not predicted: sync rule {}", rule->second));
      continue;
    }
    int64_t messages = 0;
    for (int shard_rank = 0; shard_rank < ranks.shard_degree; ++shard_rank) messages += buckets(step, layout, units, shard_rank, whole);
    table.add({.what = "gradients of all replicas",
               .axis = step.axis_name(replicating),
               .collective = "all_reduce",
               .shape = {layout.elements / ranks.shard_degree},
               .times = messages,
               .bytes = all_reduce_bytes(layout.elements * kGradientBytes, peers),
               .purpose = comm::Purpose::gradient,
               .reason = fmt::format("{} replicas see different samples; all take the same step", peers)});
  }
  std::vector<std::string> of_model = parallel::model_axes(step.plan);
  of_model.insert(of_model.end(), keeping.begin(), keeping.end());
  const int64_t sharing = step.extent(of_model), groups = step.plan.mesh.size() / sharing;
  table.add({.what = "gradient norm",
             .axis = step.axis_name(of_model),
             .collective = "all_reduce",
             .shape = {1},
             .dtype = "fp64",
             .times = sharing > 1 ? groups : 0,
             .bytes = groups * all_reduce_bytes(8, sharing),
             .purpose = comm::Purpose::gradient,
             .reason = "the norm is that of the whole model, of which each rank has a part"});
}

namespace {

// A reference model under ZeRO 3: its copied parameters are sharded too, in units of their own; it reads the others in the live units.
class ReferenceGathers {
 public:
  ReferenceGathers(const TrafficCase& step, const parallel::ModelShard& shard, const std::vector<parallel::ShardUnit>& live)
      : copied_(model::with_neighbours(step.model, step.rules.trained.empty() ? all_of(step) : step.rules.trained)),
        units_(parallel::select_units(shard.layout, live, copied_)),
        of_copy_(step, units_, copied_, copied_),
        of_live_(step, live, all_of(step), inverted(copied_)) {
    const bool pipeline = step.plan.stage_blocks.size() > 1;
    for (UnitGathers* one : {&of_copy_, &of_live_}) {
      if (pipeline) one->stages(shard.stages);
      for (int64_t pass = 0; !pipeline && pass < step.max_passes; ++pass) one->forward_pass();
    }
  }

  static std::vector<bool> all_of(const TrafficCase& step) { return std::vector<bool>(step.model.parameters().size(), true); }
  const std::vector<parallel::ShardUnit>& units() const { return units_; }
  int64_t times(size_t unit) const { return of_copy_.times(unit); }
  int64_t live_times(size_t unit) const { return of_live_.times(unit); }

 private:
  static std::vector<bool> inverted(std::vector<bool> flags) {
    flags.flip();
    return flags;
  }

  std::vector<bool> copied_;
  std::vector<parallel::ShardUnit> units_;
  UnitGathers of_copy_, of_live_;
};

}  // namespace

void add_parameters(const TrafficCase& step, TrafficTable& table) {
  const ModelRanks ranks(step);
  if (ranks.shard_degree == 1) return;
  const int64_t groups = ranks.replicas / ranks.shard_degree;
  const bool pipeline = step.plan.stage_blocks.size() > 1;
  for (const parallel::ModelShard& shard : ranks.shards) {
    const std::vector<parallel::ShardUnit> units = units_of(step, shard);
    const std::vector<bool> all = ReferenceGathers::all_of(step);
    UnitGathers gathered(step, units, all, all);
    const bool gathers = step.plan.zero == 3;
    std::optional<ReferenceGathers> reference;
    if (gathers && step.rules.reference_passes > 0) reference.emplace(step, shard, units);
    for (size_t u = 0; reference && u < reference->units().size(); ++u)
      table.add(
          {.what = "parameters of the reference model",
           .axis = step.axis_name(parallel::sharding_axes(step.plan)),
           .collective = "all_gather",
           .shape = {reference->units()[u].elements},
           .dtype = step.element_bytes() == 2 ? "bf16" : "fp32",
           .times = groups * reference->times(u),
           .bytes = groups * reference->times(u) * gather_bytes(reference->units()[u].elements * step.element_bytes(), ranks.shard_degree),
           .purpose = comm::Purpose::parameter,
           .reason = "zero 3: the frozen copy of the first weights is sharded as the weights are"});
    if (gathers && pipeline) gathered.stages(shard.stages);
    for (int64_t pass = 0; gathers && !pipeline && pass < step.max_passes; ++pass)
      gathered.pass(step.rules.recompute_last || pass + 1 < step.max_passes);
    const std::vector<bool> chosen = chosen_of(step, shard);
    for (size_t u = 0; u < units.size(); ++u) {
      // What is not trained has not changed in an update.
      const int64_t elements = gathers ? units[u].elements : parallel::active_unit(shard.layout, units[u], chosen, 0).elements;
      if (elements == 0) continue;
      const int64_t times = groups * (gathers ? gathered.times(u) + (reference ? reference->live_times(u) : 0) : 1);
      const std::string first = folded_name(shard.layout.pieces[static_cast<size_t>(units[u].first)].name);
      table.add({.what = gathers ? fmt::format("parameters of {} and what goes with it", first) : "parameters after the update",
                 .axis = step.axis_name(parallel::sharding_axes(step.plan)),
                 .collective = "all_gather",
                 .shape = {elements},
                 .dtype = step.element_bytes() == 2 ? "bf16" : "fp32",
                 .times = times,
                 .bytes = times * gather_bytes(elements * step.element_bytes(), ranks.shard_degree),
                 .purpose = comm::Purpose::parameter,
                 .reason = !gathers   ? fmt::format("zero {}: each rank has updated the part that it keeps", step.plan.zero)
                           : pipeline ? "zero 3: a stage's weights are brought together for the whole step"
                                      : "zero 3: a block's weights are brought together when a pass comes to it, and given up after it"});
    }
  }
}

namespace {

// What the ranks along tp send to update one parameter that they hold together. `number`: the split matrices before it, which decide its
// owner (optim/muon.cpp).
int64_t split_update_bytes(const TrafficCase& step, const model::Parameter& of, const std::vector<int64_t>& elements, int64_t number) {
  const auto tp = static_cast<int64_t>(elements.size());
  if (step.rules.split_update == optim::SplitUpdate::factors)
    return all_reduce_bytes((of.shape.size() == 2 ? 4 * (of.shape[0] + of.shape[1]) : 0) + 2 * 8, tp);
  int64_t parts = 0;
  for (int64_t rank = 0; rank < tp; ++rank) parts += rank == number % tp ? 0 : elements[static_cast<size_t>(rank)];
  return 2 * 4 * parts;
}

// The updates of parameters that the ranks along one axis hold together: `along`, at one coordinate of the other axes.
void add_updates_along(const TrafficCase& step, const std::string& axis, const ModelRanks& ranks,
                       const std::vector<const parallel::ModelShard*>& along, TrafficTable& table) {
  const bool matrices = step.rules.split_update == optim::SplitUpdate::matrices;
  const mesh::FlatLayout& layout = along.front()->layout;
  const std::vector<bool> chosen = chosen_of(step, *along.front());
  const std::vector<parallel::ShardUnit> units = units_of(step, *along.front());
  for (int shard_rank = 0; shard_rank < ranks.shard_degree; ++shard_rank) {
    int64_t number = 0;
    for (const parallel::ShardSlice& slice : parallel::shard_slices(layout, units, shard_rank)) {
      const auto i = static_cast<size_t>(slice.piece);
      const model::Parameter& of = step.model.parameters()[i];
      std::vector<int64_t> elements;
      for (const parallel::ModelShard* shard : along) elements.push_back(shard->layout.pieces[i].elements);
      const bool together = !std::holds_alternative<mesh::Replicate>(parallel::placement_of(step.plan, of.name).on(axis));
      if (!chosen[i] || !together || (matrices && !of.is_hidden_matrix())) continue;
      const int64_t groups = ranks.replicas / ranks.shard_degree;
      table.add({.what = "update of " + folded_name(of.name),
                 .axis = axis,
                 .collective = matrices ? "all_to_all" : "all_reduce",
                 .shape = of.shape,
                 .times = 2 * groups,
                 .bytes = groups * split_update_bytes(step, of, elements, number++),
                 .purpose = comm::Purpose::gradient,
                 .reason = matrices ? "one rank makes the whole matrix orthogonal, from the parts of all, and sends them theirs"
                                    : "means over rows and columns, and the size of the update, are those of the whole parameter"});
    }
  }
}

}  // namespace

void add_update(const TrafficCase& step, TrafficTable& table) {
  if (step.rules.split_update == optim::SplitUpdate::nothing) return;
  const ModelRanks ranks(step);
  const std::vector<std::string> axes = parallel::model_axes(step.plan);
  for (const std::string axis : {"tp", "ep"}) {
    if (step.extent(axis) == 1 || std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
    for (const int first : ranks.first) {
      if (step.plan.mesh.coordinate(first, axis) > 0) continue;
      const std::vector<int> group = step.plan.mesh.peers(first, axis);
      std::vector<const parallel::ModelShard*> along;
      for (size_t r = 0; r < ranks.first.size(); ++r)
        if (std::find(group.begin(), group.end(), ranks.first[r]) != group.end()) along.push_back(&ranks.shards[r]);
      add_updates_along(step, axis, ranks, along, table);
    }
  }
}

}  // namespace cairn::planner
