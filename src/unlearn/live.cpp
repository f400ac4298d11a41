#include "unlearn/live.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace cairn::unlearn {
namespace {

// Of two measured losses the lower; one that was not measured is worse than any.
bool is_better(double a, double b) { return std::isfinite(a) && (!std::isfinite(b) || a < b); }

void choose_longest(LiveShard& shard) {
  const auto validation = [](const LiveOrder& one) { return one.chain.empty() ? kNotMeasured : one.chain.back().validation; };
  for (size_t i = 0; i < shard.orders.size(); ++i) {
    const LiveOrder& one = shard.orders[i];
    const auto length = static_cast<int64_t>(one.chain.size());
    if (length == 0 || length < shard.length) continue;
    if (length == shard.length && !is_better(validation(one), validation(shard.orders[static_cast<size_t>(shard.serving)]))) continue;
    shard.serving = static_cast<int64_t>(i), shard.length = length;
  }
}

void choose_best(LiveShard& shard) {
  double best = kNotMeasured;
  for (size_t i = 0; i < shard.orders.size(); ++i)
    for (size_t stage = 0; stage < shard.orders[i].chain.size(); ++stage) {
      const double validation = shard.orders[i].chain[stage].validation;
      if (!is_better(validation, best)) continue;
      best = validation, shard.serving = static_cast<int64_t>(i), shard.length = static_cast<int64_t>(stage) + 1;
    }
  if (shard.serving < 0) choose_longest(shard);  // nothing was measured
}

}  // namespace

ArtifactName live_name(int64_t shard, const Order& slices, const DeletedCounts& deleted) {
  ArtifactName name{.shard = shard, .slices = slices};
  for (const int64_t slice : slices) name.excluded += deleted[static_cast<size_t>(shard)][static_cast<size_t>(slice)];
  return name;
}

std::vector<LiveShard> live_shards(const StoreSpec& spec, const DeletedCounts& deleted, const std::map<std::string, Artifact>& artifacts) {
  CAIRN_CHECK(static_cast<int64_t>(deleted.size()) == spec.shards, "deletions of {} shards of {}", deleted.size(), spec.shards);
  std::vector<LiveShard> shards;
  for (int64_t s = 0; s < spec.shards; ++s) {
    LiveShard& shard = shards.emplace_back();
    for (const Order& order : spec.orders[static_cast<size_t>(s)]) {
      LiveOrder& one = shard.orders.emplace_back(LiveOrder{.order = order});
      for (size_t stage = 0; stage < order.size(); ++stage) {
        const Order slices(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(stage) + 1);
        const auto found = artifacts.find(to_text(live_name(s, slices, deleted)));
        if (found == artifacts.end()) break;
        const Artifact& artifact = found->second;
        const bool fits = one.chain.empty() ||
                          (artifact.parent == to_text(one.chain.back().name) && artifact.parent_checksum == one.chain.back().checksum);
        if (!fits) break;
        one.chain.push_back(artifact);
      }
    }
    spec.prefix == Prefix::best ? choose_best(shard) : choose_longest(shard);
  }
  return shards;
}

int64_t Served::answering() const {
  return std::ranges::count_if(shards, [](const LiveShard& one) { return one.serving >= 0; });
}

std::vector<Artifact> Served::chain(int64_t shard) const {
  const LiveShard& one = shards[static_cast<size_t>(shard)];
  if (one.serving < 0) return {};
  const std::vector<Artifact>& whole = one.orders[static_cast<size_t>(one.serving)].chain;
  return {whole.begin(), whole.begin() + one.length};
}

Served served_by(const Store& store) {
  // Deletions first: an artifact that is removed meanwhile was not live for them.
  const DeletedCounts deleted = store.deleted_by_slice();
  Served served;
  for (const std::vector<int64_t>& shard : deleted)
    for (const int64_t count : shard) served.deletions += count;
  served.shards = live_shards(store.spec(), deleted, read_artifacts(store));
  return served;
}

mesh::NamedTensors served_tensors(const Store& store, const std::vector<Artifact>& chain) {
  CAIRN_CHECK(!chain.empty(), "adapters of a shard that abstains");
  if (store.spec().method == Method::sisa) return read_adapter_tensors(store, chain.back());
  mesh::NamedTensors all;
  for (const Artifact& stage : chain)
    for (mesh::NamedTensor& one : read_adapter_tensors(store, stage)) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::unlearn
