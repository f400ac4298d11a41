#include "parallel/state/sharded_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/memory_scope.h"
#include "base/text.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "mesh/trainable_gradients.h"
#include "parallel/state/group_buffer.h"

namespace cairn::parallel {

ShardedWeights::ShardedWeights(Parts parts) : parts_(std::move(parts)) {
  const size_t n = parts_.units.size();
  me_ = parts_.shard_group ? parts_.shard_group->rank() : 0;
  unit_of_.resize(parts_.layout.pieces.size());
  whole_.resize(n);
  gathers_.resize(n);
  packed_.resize(n);
  const bool in_place = !parts_.gathers && parts_.master.dtype() == parts_.compute.dtype();
  at::Tensor flat;
  if (!parts_.gathers) flat = group_buffer(parts_.shard_group, parts_.layout.elements, parts_.compute);
  int64_t mine = 0;
  for (const ShardUnit& unit : parts_.units) mine += unit.part_of(me_).length();
  mesh::TensorSwapper* const swapper = parts_.swapped.swapper;
  const at::Tensor own = in_place || swapper ? at::Tensor() : at::empty({mine}, parts_.master);
  int64_t next = 0;
  for (size_t u = 0; u < n; ++u) {
    const ShardUnit& unit = parts_.units[u];
    for (int64_t i = unit.first; i < unit.last; ++i) unit_of_[static_cast<size_t>(i)] = static_cast<int64_t>(u);
    layouts_.push_back(layout_of(parts_.layout, unit));
    if (!parts_.gathers) whole_[u] = flat.narrow(0, unit.offset, unit.elements);
    const mesh::Interval part = unit.part_of(me_);
    if (swapper) {
      shards_.push_back(swapper->make({.name = "parameters." + parts_.layout.pieces[static_cast<size_t>(unit.first)].name,
                                       .home = parts_.swapped.home,
                                       .use = base::MemoryUse::parameters,
                                       .io_class = memory::IoClass::parameters},
                                      part.length(), parts_.master));
      continue;
    }
    shards_.push_back(in_place ? whole_[u].narrow(0, part.begin, part.length()) : own.narrow(0, next, part.length()));
    next += part.length();
  }
}

at::Tensor ShardedWeights::get(mesh::ParamId id) const {
  const int64_t unit = unit_of(id);
  const at::Tensor& whole = whole_[static_cast<size_t>(unit)];
  if (!whole.defined()) start_gather(unit);  // it was not prefetched
  finish_gather(unit);
  const ShardUnit& of = parts_.units[static_cast<size_t>(unit)];
  CAIRN_CHECK(id.first + id.count <= of.last, "{} and its neighbours are in different units",
              parts_.layout.pieces[static_cast<size_t>(id.first)].name);
  return layouts_[static_cast<size_t>(unit)].view(whole, {static_cast<int32_t>(id.first - of.first), id.count});
}

void ShardedWeights::fetch(std::span<const mesh::ParamId> ids) const {
  if (!parts_.gathers) return;
  for (const mesh::ParamId& id : ids)
    if (!whole_[static_cast<size_t>(unit_of(id))].defined() && has_room(unit_of(id))) start_gather(unit_of(id));
}

// Whether a unit can be gathered within the budget. All ranks find the same, since units are as large on all of them.
bool ShardedWeights::has_room(int64_t u) const {
  const int64_t most = parts_.swapped.gathered_bytes_max;
  if (most == 0) return true;
  const int64_t elements = parts_.units[static_cast<size_t>(u)].elements;
  if (std::any_of(spare_.begin(), spare_.end(), [&](const at::Tensor& one) { return one.numel() == elements; })) return true;
  int64_t spare = 0;
  for (const at::Tensor& one : spare_) spare += static_cast<int64_t>(one.nbytes());
  return gathered_now_ - spare + elements * static_cast<int64_t>(parts_.compute.dtype().itemsize()) <= most;
}

// A unit is used: the disk reads it, and then those that were used after it in the step before.
void ShardedWeights::read_ahead(int64_t u) const {
  const SwappedUnits& swapped = parts_.swapped;
  if (!order_.used(u) && order_.surprises() == 1 && swapped.log)
    swapped.log->warn("memory.parameters: this step uses {} in another order than the step before, which is recorded anew",
                      parts_.layout.pieces[static_cast<size_t>(parts_.units[static_cast<size_t>(u)].first)].name);
  if (!swapped.swapper->prefetch(shards_[static_cast<size_t>(u)])) return;
  for (const int64_t next : order_.ahead(static_cast<size_t>(swapped.read_ahead)))
    if (!whole_[static_cast<size_t>(next)].defined() && !swapped.swapper->prefetch(shards_[static_cast<size_t>(next)])) return;
}

void ShardedWeights::end_of_step() const {
  if (!parts_.swapped.swapper) return;
  order_.end_step();
  for (const int64_t next : order_.ahead(static_cast<size_t>(parts_.swapped.read_ahead)))
    if (!parts_.swapped.swapper->prefetch(shards_[static_cast<size_t>(next)])) return;
}

void ShardedWeights::release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const {
  if (!parts_.gathers) return;
  for (const mesh::ParamId& id : ids) {
    const int64_t unit = unit_of(id);
    if (parts_.units[static_cast<size_t>(unit)].of_many_layers) continue;
    if (std::none_of(next.begin(), next.end(), [&](const mesh::ParamId& one) { return unit_of(one) == unit; })) drop(unit);
  }
}

void ShardedWeights::finish_gather(int64_t u) const {
  gathers_[static_cast<size_t>(u)].wait();
  PackedGather& packed = packed_[static_cast<size_t>(u)];
  if (!packed.message.defined()) return;
  unpack(packed.message, packed.runs, whole_[static_cast<size_t>(u)]);
  packed = {};
}

// Of a unit that stays in memory.
void ShardedWeights::start_packed_gather(int64_t u, ActiveUnit changed) const {
  finish_gather(u);
  const at::Tensor &whole = whole_[static_cast<size_t>(u)], &shard = shards_[static_cast<size_t>(u)];
  const ShardUnit& unit = parts_.units[static_cast<size_t>(u)];
  const mesh::Interval mine = unit.part_of(me_);
  if (!whole.narrow(0, mine.begin, mine.length()).is_alias_of(shard))
    for (const mesh::Interval& run : changed.own)
      whole.narrow(0, run.begin, run.length()).copy_(shard.narrow(0, run.begin - mine.begin, run.length()));
  if (!parts_.shard_group) return;
  const at::Tensor message = at::empty({changed.elements}, parts_.compute);
  const int64_t before = std::accumulate(changed.counts.begin(), changed.counts.begin() + me_, int64_t{0});
  const at::Tensor own = message.narrow(0, before, changed.counts[static_cast<size_t>(me_)]);
  if (own.numel() > 0) own.copy_(pack(whole, changed.own));
  const std::string& name = parts_.layout.pieces[static_cast<size_t>(unit.first)].name;
  gathers_[static_cast<size_t>(u)] = parts_.shard_group->all_gather(message, own, {comm::Purpose::parameter, name}, changed.counts);
  packed_[static_cast<size_t>(u)] = {message, std::move(changed.runs)};
}

void ShardedWeights::start_gather(int64_t u) const {
  packed_[static_cast<size_t>(u)] = {};  // everything is gathered again
  const ShardUnit& unit = parts_.units[static_cast<size_t>(u)];
  at::Tensor& whole = whole_[static_cast<size_t>(u)];
  if (parts_.swapped.swapper) read_ahead(u);
  if (parts_.gathers) {
    if (!has_room(u))
      throw Error(
          Error::Kind::out_of_memory,
          fmt::format("memory.device_budget: {} of gathered blocks are in use, and {} needs {} more than the budget leaves. Raise it.",
                      base::human_bytes(gathered_now_), parts_.layout.pieces[static_cast<size_t>(unit.first)].name,
                      base::human_bytes(unit.elements * static_cast<int64_t>(parts_.compute.dtype().itemsize()))));
    for (size_t i = 0; i < spare_.size() && !whole.defined(); ++i)
      if (spare_[i].numel() == unit.elements) {
        whole = spare_[i];
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    if (!whole.defined()) {  // a buffer of this size replaces the spare ones
      for (const at::Tensor& other : spare_) gathered_now_ -= static_cast<int64_t>(other.nbytes());
      spare_.clear();
      const base::MemoryScope purpose("parameters, gathered");
      whole = group_buffer(parts_.shard_group, unit.elements, parts_.compute);
      gathered_now_ += static_cast<int64_t>(whole.nbytes());
      peak_gathered_ = std::max(peak_gathered_, gathered_now_);
    }
  }
  const mesh::Interval mine = unit.part_of(me_);
  const at::Tensor own = whole.narrow(0, mine.begin, mine.length());
  if (!own.is_alias_of(shards_[static_cast<size_t>(u)])) {
    const auto there = mesh::hold(parts_.swapped.swapper, shards_[static_cast<size_t>(u)], mesh::TensorSwapper::Access::read);
    own.copy_(shards_[static_cast<size_t>(u)]);
  }
  if (!parts_.shard_group) return;
  const std::string& name = parts_.layout.pieces[static_cast<size_t>(unit.first)].name;
  gathers_[static_cast<size_t>(u)] = parts_.shard_group->all_gather(whole, own, {comm::Purpose::parameter, name}, unit.counts);
}

void ShardedWeights::drop(int64_t u) const {
  at::Tensor& whole = whole_[static_cast<size_t>(u)];
  if (!whole.defined()) return;
  finish_gather(u);
  constexpr size_t kMaxSpare = 2;  // blocks alternate between few sizes; more would hold memory that ZeRO 3 is meant to free
  spare_.push_back(std::move(whole));
  whole = at::Tensor();
  if (spare_.size() <= kMaxSpare) return;
  gathered_now_ -= static_cast<int64_t>(spare_.front().nbytes());
  spare_.erase(spare_.begin());
}

void ShardedWeights::updated() {
  for (size_t u = 0; u < parts_.units.size(); ++u) parts_.gathers ? drop(static_cast<int64_t>(u)) : start_gather(static_cast<int64_t>(u));
  end_of_step();
}

void ShardedWeights::updated(const std::vector<bool>& changed) {
  CAIRN_CHECK(changed.size() == parts_.layout.pieces.size(), "{} marks for {} pieces", changed.size(), parts_.layout.pieces.size());
  if (changed != changed_) {
    changed_ = changed;
    changed_units_ = active_units(parts_.layout, parts_.units, changed, me_);
  }
  for (size_t i = 0; i < parts_.units.size(); ++i) {
    const auto u = static_cast<int64_t>(i);
    const ActiveUnit& unit = changed_units_[i];
    if (unit.none()) continue;
    if (parts_.gathers)
      drop(u);
    else
      unit.all ? start_gather(u) : start_packed_gather(u, unit);
  }
  end_of_step();
}

void ShardedWeights::wait_for_gathers() const {
  for (const comm::Work& work : gathers_) work.wait_host();
}

std::unique_ptr<ShardedWeights> ShardedWeights::copy_of(const std::vector<bool>& chosen) const {
  Parts parts{.layout = mesh::trainable_layout(parts_.layout, chosen),
              .units = select_units(parts_.layout, parts_.units, chosen),
              .placements = {},
              .shard_group = parts_.gathers ? parts_.shard_group : nullptr,
              .gathers = parts_.gathers,
              .master = parts_.compute,
              .compute = parts_.compute};
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) parts.placements.push_back(parts_.placements[i]);
  if (!parts_.gathers)
    for (ShardUnit& unit : parts.units) unit.counts = {unit.elements};
  CAIRN_CHECK(!parts_.swapped.swapper, "a copy of weights that are swapped");
  auto copy = std::make_unique<ShardedWeights>(std::move(parts));
  if (parts_.gathers) {
    const std::vector<ShardSlice> own = shard_slices(copy->parts_.layout, copy->parts_.units, me_);
    size_t next = 0;  // of the copy's slices, which leave some out but keep the order
    for (const ShardSlice& slice : shard_slices(parts_.layout, parts_.units, me_)) {
      if (!chosen[static_cast<size_t>(slice.piece)]) continue;
      const ShardSlice& to = own.at(next++);
      CAIRN_CHECK(to.elements == slice.elements, "a copy that is sharded otherwise: {} elements of {}", to.elements.length(),
                  slice.elements.length());
      copy->shard(to.unit)
          .narrow(0, to.offset, to.elements.length())
          .copy_(shard(slice.unit).narrow(0, slice.offset, slice.elements.length()));
    }
    return copy;
  }
  int32_t next = 0;
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) copy->get({next++}).copy_(get({static_cast<int32_t>(i)}));
  return copy;
}

int64_t ShardedWeights::bytes() const {
  int64_t n = 0;
  for (size_t u = 0; u < shards_.size(); ++u) {
    const bool inside = whole_[u].defined() && shards_[u].is_alias_of(whole_[u]);
    const bool away = inside || parts_.swapped.swapper;
    n += static_cast<int64_t>((whole_[u].defined() ? whole_[u].nbytes() : 0) + (away ? 0 : shards_[u].nbytes()));
  }
  return n;
}

}  // namespace cairn::parallel
