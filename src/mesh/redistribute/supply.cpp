#include "mesh/redistribute/supply.h"

#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

Supply::Supply(const LayoutChange& change) : change_(change) {
  std::set<std::string> axes;
  for (int rank : change.from.mesh.members())
    for (const AxisCoordinate& place : change.from.mesh.axis_coordinates(rank)) axes.insert(place.axis);
  for (const std::string& axis : axis_names()) {
    if (!axes.contains(axis)) continue;
    const Placement::How how = change.from.placement.on(axis);
    if (std::holds_alternative<Replicate>(how)) replicating_.push_back(axis);
    if (is_partial(how)) (stays_partial(change, axis) ? kept_ : reduced_).push_back(axis);
  }
  for (int rank : change.from.mesh.members()) {
    const std::vector<AxisCoordinate> axis_coordinates = change.from.mesh.axis_coordinates(rank);
    Terms& terms = by_kept_[coordinates(axis_coordinates, kept_)][coordinates(axis_coordinates, replicating_)];
    terms[coordinates(axis_coordinates, reduced_)].push_back(
        {rank, local_shard(change.from.placement, axis_coordinates, change.shape).boxes()});
  }
}

const Supply::Replicas& Supply::replicas_for(int to) const {
  static const Key everything;
  return by_kept_.at(kept_.empty() ? everything : coordinates(change_.to.mesh.axis_coordinates(to), kept_));
}

std::vector<BoxTransfer> Supply::transfers(int to, int index, const Box& box) const {
  const Replicas& replicas = replicas_for(to);
  auto at = replicas.begin();
  if (change_.from.mesh.contains(to))
    at = replicas.find(coordinates(change_.from.mesh.axis_coordinates(to), replicating_));
  else
    std::advance(at, index % static_cast<int>(replicas.size()));
  std::vector<BoxTransfer> found;
  std::vector<Box> missing{box};
  for (size_t tried = 0; tried < replicas.size() && !missing.empty(); ++tried) {
    std::vector<Box> still;
    for (const Box& part : missing)
      for (BoxTransfer& transfer : from_replica(at->second, to, index, part)) {
        if (transfer.from.empty())
          still.push_back(std::move(transfer.box));
        else
          found.push_back(std::move(transfer));
      }
    missing = std::move(still);
    if (++at == replicas.end()) at = replicas.begin();
  }
  if (!missing.empty()) base::fail_input("{}: no rank holds {}", to_string(change_), to_string(missing.front()));
  return found;
}

// Goes over the terms. Each transfer is cut along the boxes that the holders of the next term have; a part that no holder has goes on
// without that term.
std::vector<BoxTransfer> Supply::from_replica(const Terms& terms, int to, int index, const Box& box) const {
  std::vector<BoxTransfer> transfers{{to, box, {}}};
  for (const auto& [term, holders] : terms) {
    std::vector<const Holder*> order;  // the receiver itself first, then the others in rotation, so that not all ask the first owner
    for (const Holder& holder : holders)
      if (holder.rank == to) order.push_back(&holder);
    for (size_t k = 0; k < holders.size(); ++k)
      if (const Holder& holder = holders[(k + static_cast<size_t>(index)) % holders.size()]; holder.rank != to) order.push_back(&holder);

    std::vector<BoxTransfer> next;
    for (const BoxTransfer& transfer : transfers) {
      std::vector<Box> left{transfer.box};
      for (const Holder* holder : order) {
        for (const Box& held : holder->boxes) {
          std::vector<Box> rest;
          for (const Box& part : left) {
            const auto shared = intersect(part, held);
            if (!shared) {
              rest.push_back(part);
              continue;
            }
            next.push_back({to, *shared, transfer.from});
            next.back().from.push_back(holder->rank);
            for (Box& outside : subtract(part, held)) rest.push_back(std::move(outside));
          }
          left = std::move(rest);
        }
        if (left.empty()) break;
      }
      for (Box& part : left) next.push_back({to, std::move(part), transfer.from});
    }
    transfers = std::move(next);
  }
  return transfers;
}

}  // namespace cairn::mesh
