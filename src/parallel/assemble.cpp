#include "parallel/assemble.h"

#include <algorithm>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

comm::Group& company_group(comm::World& world, const Plan& plan) {
  return islands_apart(plan) ? world.group(company_of(plan, world.rank())) : world.everyone();
}

}  // namespace

Assembly::Assembly(Parts parts) : company_(company_group(parts.world, parts.plan)), rank_(parts.world.rank()), model_(parts.model) {
  const Plan& plan = parts.plan;
  const UnitRules rules = unit_rules(plan, parts.whole_parameters, parts.unit_elements_least);
  trivial_ = rules.ranks == 1 && plan.mesh.extent("tp") == 1 && plan.mesh.extent("pp") == 1;
  if (trivial_) return;
  const size_t n = parts.model.parameters().size();
  sources_.resize(n);
  local_shards_.resize(n);
  for (const int rank : company_.ranks()) {
    bool first = true;
    for (const std::string& axis : replicating_axes(plan)) first = first && plan.mesh.coordinate(rank, axis) == 0;
    if (!first) continue;
    const Share share = share_of(parts.model, plan, rank);
    const std::vector<Unit> units = make_units(parts.model, share.layout, rules);
    int keeper = 0;
    if (rules.ranks > 1) {
      const std::vector<int> peers = plan.mesh.peers_along(rank, keeping_axes(plan));
      while (peers[static_cast<size_t>(keeper)] != rank) ++keeper;
    }
    for (const KeptPart& part : kept_by(share.layout, units, keeper)) {
      const auto parameter = static_cast<size_t>(part.piece);
      if (share.parameters[parameter].copies.front() != rank) continue;
      sources_[parameter].push_back({rank, part.elements});
      local_shards_[parameter][rank] = share.parameters[parameter].local_shard;
    }
  }
}

at::Tensor Assembly::gather(size_t parameter, const at::Tensor& mine, std::string_view what) const {
  const comm::Label label{comm::Purpose::state, what};
  const auto flat = [&] { return mine.to(at::TensorOptions().dtype(at::kFloat).device(at::kCPU)).contiguous().view({-1}); };
  if (company_.rank() != 0) {
    for (const Source& source : sources_[parameter])
      if (source.rank == rank_) company_.send(flat(), 0, label).wait_host();
    return {};
  }
  // Ranks that share one part out fill one local tensor.
  std::vector<std::pair<mesh::LocalShard, at::Tensor>> locals;
  for (const Source& source : sources_[parameter]) {
    const mesh::LocalShard& local_shard = local_shards_[parameter].at(source.rank);
    auto found = std::find_if(locals.begin(), locals.end(), [&](const auto& one) { return one.first == local_shard; });
    if (found == locals.end()) found = locals.insert(locals.end(), {local_shard, at::empty(local_shard.local_shape(), at::kFloat)});
    const at::Tensor place = found->second.view({-1}).narrow(0, source.elements.begin, source.elements.length());
    if (source.rank == rank_) {
      place.copy_(flat());
    } else {
      company_.recv(place, place_of(source.rank), label).wait_host();
    }
  }
  const at::Tensor whole = at::empty(model_.parameters()[parameter].shape, at::kFloat);
  for (const auto& [local_shard, local] : locals) put_back(whole, local_shard, local);
  return whole;
}

at::Tensor Assembly::gather_whole(size_t parameter, const at::Tensor& mine, const std::vector<int64_t>& shape,
                                  std::string_view what) const {
  const comm::Label label{comm::Purpose::state, what};
  CAIRN_CHECK(sources_[parameter].size() == 1, "{} is kept in {} parts and {} is not", model_.parameters()[parameter].name,
              sources_[parameter].size(), what);
  const int from = sources_[parameter][0].rank;
  if (rank_ == from && company_.rank() != 0) company_.send(mine.cpu().contiguous(), 0, label).wait_host();
  if (company_.rank() != 0) return {};
  if (from == rank_) return mine;
  const at::Tensor whole = at::empty(shape, at::kFloat);
  company_.recv(whole, place_of(from), label).wait_host();
  return whole;
}

int Assembly::place_of(int rank) const {
  const std::vector<int>& ranks = company_.ranks();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace cairn::parallel
