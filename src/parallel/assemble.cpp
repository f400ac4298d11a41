#include "parallel/assemble.h"

#include <algorithm>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/model.h"

namespace cairn::parallel {

Assembly::Assembly(Parts parts) : world_(parts.world), model_(parts.model) {
  const Plan& plan = parts.plan;
  const UnitRules rules = unit_rules(plan, parts.whole_parameters, parts.unit_elements_least);
  trivial_ = rules.ranks == 1 && plan.mesh.extent("tp") == 1 && plan.mesh.extent("pp") == 1;
  if (trivial_) return;
  const size_t n = parts.model.parameters().size();
  sources_.resize(n);
  holdings_.resize(n);
  for (int rank = 0; rank < parts.world.size(); ++rank) {
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
      holdings_[parameter][rank] = share.parameters[parameter].holding;
    }
  }
}

at::Tensor Assembly::gather(size_t parameter, const at::Tensor& mine, std::string_view what) const {
  comm::Group& all = world_.everyone();
  const comm::Label label{comm::Purpose::state, what};
  const auto flat = [&] { return mine.to(at::TensorOptions().dtype(at::kFloat).device(at::kCPU)).contiguous().view({-1}); };
  if (world_.rank() != 0) {
    for (const Source& source : sources_[parameter])
      if (source.rank == world_.rank()) all.send(flat(), 0, label).wait_host();
    return {};
  }
  // Ranks that share one part out fill one local tensor.
  std::vector<std::pair<mesh::Holding, at::Tensor>> locals;
  for (const Source& source : sources_[parameter]) {
    const mesh::Holding& holding = holdings_[parameter].at(source.rank);
    auto found = std::find_if(locals.begin(), locals.end(), [&](const auto& one) { return one.first == holding; });
    if (found == locals.end()) found = locals.insert(locals.end(), {holding, at::empty(holding.local_shape(), at::kFloat)});
    const at::Tensor place = found->second.view({-1}).narrow(0, source.elements.begin, source.elements.length());
    if (source.rank == 0) {
      place.copy_(flat());
    } else {
      all.recv(place, source.rank, label).wait_host();
    }
  }
  const at::Tensor whole = at::empty(model_.parameters()[parameter].shape, at::kFloat);
  for (const auto& [holding, local] : locals) put_back(whole, holding, local);
  return whole;
}

at::Tensor Assembly::gather_whole(size_t parameter, const at::Tensor& mine, const std::vector<int64_t>& shape,
                                  std::string_view what) const {
  comm::Group& all = world_.everyone();
  const comm::Label label{comm::Purpose::state, what};
  CAIRN_CHECK(sources_[parameter].size() == 1, "{} is kept in {} parts and {} is not", model_.parameters()[parameter].name,
              sources_[parameter].size(), what);
  const int from = sources_[parameter][0].rank;
  if (world_.rank() == from && from != 0) all.send(mine.cpu().contiguous(), 0, label).wait_host();
  if (world_.rank() != 0) return {};
  if (from == 0) return mine;
  const at::Tensor whole = at::empty(shape, at::kFloat);
  all.recv(whole, from, label).wait_host();
  return whole;
}

}  // namespace cairn::parallel
