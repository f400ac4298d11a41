#include "parallel/state/state_map.h"

#include <algorithm>

#include "base/check.h"
#include "model/model.h"
#include "parallel/layout/model_shard.h"
#include "parallel/state/parameter_store.h"
#include "parallel/state/shard_units.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kCutBytes = 1 << 20;  // less than this is written by one rank

}  // namespace

StateMap::StateMap(const Parts& parts) : ranks_(parts.ranks.size()), holdings_(parts.model.parameters().size()) {
  const Plan& plan = parts.plan;
  const ShardUnitRules rules = shard_unit_rules(plan, parts.whole_parameters, parts.min_unit_elements);
  for (size_t place = 0; place < parts.ranks.size(); ++place) {
    const int rank = parts.ranks[place];
    const ModelShard shard = model_shard(parts.model, plan, rank);
    const std::vector<ShardUnit> units = make_shard_units(parts.model, shard.layout, rules);
    int shard_rank = 0;
    if (rules.ranks > 1) {
      const std::vector<int> peers = plan.mesh.peers_along(rank, sharding_axes(plan));
      shard_rank = static_cast<int>(std::find(peers.begin(), peers.end(), rank) - peers.begin());
    }
    for (const ShardSlice& slice : shard_slices(shard.layout, units, shard_rank)) {
      const auto parameter = static_cast<size_t>(slice.piece);
      if (slice.elements.length() == 0) continue;
      const ParameterShard& held = shard.parameters[parameter];
      holdings_[parameter].push_back({static_cast<int>(place), {held.local_shard, slice.elements}, held.copies.front() == rank});
    }
  }
}

std::vector<std::vector<StateMap::Holding>> StateMap::divide(const std::vector<Tensor>& tensors) const {
  std::vector<std::vector<Holding>> result(tensors.size());
  std::vector<int64_t> load(ranks_, 0);
  const auto least = [&](const std::vector<int>& ranks) {
    return *std::min_element(ranks.begin(), ranks.end(),
                             [&](int a, int b) { return load[static_cast<size_t>(a)] < load[static_cast<size_t>(b)]; });
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    // Ranks that have the same. First copies have all of the parameter; others help where they are cut in the same way.
    std::vector<std::pair<mesh::Fragment, std::vector<int>>> groups;
    for (const bool first : {true, false})
      for (const Holding& holding : holdings_[tensor.parameter]) {
        if (holding.first_copy != first) continue;
        const mesh::Fragment fragment = tensor.by_element ? holding.fragment : mesh::whole_tensor(tensor.shape);
        auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == fragment; });
        if (found == groups.end() && first) found = groups.insert(groups.end(), {fragment, {}});
        if (found != groups.end()) found->second.push_back(holding.rank);
      }
    for (auto& [fragment, ranks] : groups) {
      const auto copies = static_cast<int64_t>(ranks.size());
      const int64_t bytes = fragment.elements.length() * tensor.element_bytes;
      const int64_t parts = std::min(copies, std::max<int64_t>(1, bytes / kCutBytes));
      for (int64_t part = 0; part < parts; ++part) {
        const int rank = least(ranks);
        std::erase(ranks, rank);
        const mesh::Interval share = mesh::even_part(fragment.elements.length(), parts, part);
        result[i].push_back({rank, {fragment.local_shard, {fragment.elements.begin + share.begin, fragment.elements.begin + share.end}}});
        load[static_cast<size_t>(rank)] += share.length() * tensor.element_bytes;
      }
    }
    if (groups.empty())
      result[i].push_back({0, mesh::whole_tensor(tensor.shape)});  // without elements: no rank holds it, but it has a name
  }
  return result;
}

}  // namespace cairn::parallel
