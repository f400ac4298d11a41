#include "parallel/state/full_tensor_gather.h"

#include <algorithm>

#include <c10/util/accumulate.h>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

comm::Group& step_group(comm::World& world, const Plan& plan) {
  return islands_step_separately(plan) ? world.group(step_group_of(plan, world.rank())) : world.everyone();
}

}  // namespace

FullTensorGather::FullTensorGather(Parts parts)
    : step_group_(step_group(parts.world, parts.plan)), rank_(parts.world.rank()), model_(parts.model) {
  const Plan& plan = parts.plan;
  const ShardUnitRules rules = shard_unit_rules(plan, parts.whole_parameters, parts.min_unit_elements);
  trivial_ = rules.ranks == 1 && plan.mesh.extent("tp") == 1 && plan.mesh.extent("pp") == 1 && !places_experts(plan);
  if (trivial_) return;
  const size_t n = parts.model.parameters().size();
  sources_.resize(n);
  local_shards_.resize(n);
  for (const int rank : step_group_.ranks()) {
    bool first = true;
    for (const std::string& axis : replicating_axes(plan)) first = first && plan.mesh.coordinate(rank, axis) == 0;
    if (!first) continue;
    const ModelShard shard = model_shard(parts.model, plan, rank);
    const std::vector<ShardUnit> units = make_shard_units(parts.model, shard.layout, rules);
    int shard_rank = 0;
    if (rules.ranks > 1) {
      const std::vector<int> peers = plan.mesh.peers_along(rank, sharding_axes(plan));
      while (peers[static_cast<size_t>(shard_rank)] != rank) ++shard_rank;
    }
    for (const ShardSlice& part : shard_slices(shard.layout, units, shard_rank)) {
      const auto parameter = static_cast<size_t>(part.piece);
      if (shard.parameters[parameter].copies.front() != rank) continue;
      sources_[parameter].push_back({rank, part.elements});
      local_shards_[parameter][rank] = shard.parameters[parameter].local_shard;
    }
  }
}

at::Tensor FullTensorGather::gather(size_t parameter, const at::Tensor& mine, std::string_view what, at::ScalarType dtype) const {
  const comm::Label label{comm::Purpose::state, what};
  const auto flat = [&] { return mine.to(at::TensorOptions().dtype(dtype).device(at::kCPU)).contiguous().view({-1}); };
  if (step_group_.rank() != 0) {
    for (const Source& source : sources_[parameter])
      if (source.rank == rank_) step_group_.send(flat(), 0, label).wait_host();
    return {};
  }
  // Ranks that shard one local tensor fill it together.
  std::vector<std::pair<mesh::LocalShard, at::Tensor>> locals;
  for (const Source& source : sources_[parameter]) {
    const mesh::LocalShard& local_shard = local_shards_[parameter].at(source.rank);
    auto found = std::find_if(locals.begin(), locals.end(), [&](const auto& one) { return one.first == local_shard; });
    if (found == locals.end()) found = locals.insert(locals.end(), {local_shard, at::empty(local_shard.local_shape(), dtype)});
    const at::Tensor place = found->second.view({-1}).narrow(0, source.elements.begin, source.elements.length());
    if (source.rank == rank_) {
      place.copy_(flat());
    } else {
      step_group_.recv(place, place_of(source.rank), label).wait_host();
    }
  }
  const at::Tensor whole = at::empty(model_.parameters()[parameter].shape, dtype);
  for (const auto& [local_shard, local] : locals) put_back(whole, local_shard, local);
  return whole;
}

at::Tensor FullTensorGather::gather_whole(size_t parameter, const at::Tensor& mine, const std::vector<int64_t>& shape,
                                          std::string_view what, at::ScalarType dtype) const {
  const comm::Label label{comm::Purpose::state, what};
  for (const Source& source : sources_[parameter])
    CAIRN_CHECK(source.elements.length() == c10::multiply_integers(local_shards_[parameter].at(source.rank).local_shape()),
                "{} is cut into slices and {} is not", model_.parameters()[parameter].name, what);
  const int from = sources_[parameter].front().rank;
  const auto copied = [&] { return mine.to(at::TensorOptions().dtype(dtype).device(at::kCPU), /*non_blocking=*/false, /*copy=*/true); };
  if (rank_ == from && step_group_.rank() != 0) step_group_.send(copied().contiguous(), 0, label).wait_host();
  if (step_group_.rank() != 0) return {};
  if (from == rank_) return copied();
  const at::Tensor whole = at::empty(shape, dtype);
  step_group_.recv(whole, place_of(from), label).wait_host();
  return whole;
}

int FullTensorGather::place_of(int rank) const {
  const std::vector<int>& ranks = step_group_.ranks();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace cairn::parallel
