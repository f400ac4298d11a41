#include "mesh/supply.h"

#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "mesh/holding.h"

namespace cairn::mesh {

Supply::Supply(const Change& change) : change_(change) {
  std::set<std::string> axes;
  for (int rank : change.from.mesh.members())
    for (const Spot& spot : change.from.mesh.spots(rank)) axes.insert(spot.axis);
  for (const std::string& axis : axis_names()) {
    if (!axes.contains(axis)) continue;
    const Placement::How how = change.from.placement.on(axis);
    if (std::holds_alternative<Replicate>(how)) replicating_.push_back(axis);
    if (is_partial(how)) (stays_partial(change, axis) ? kept_ : reduced_).push_back(axis);
  }
  for (int rank : change.from.mesh.members()) {
    const std::vector<Spot> spots = change.from.mesh.spots(rank);
    Terms& terms = by_kept_[coordinates(spots, kept_)][coordinates(spots, replicating_)];
    terms[coordinates(spots, reduced_)].push_back({rank, holding(change.from.placement, spots, change.shape).boxes()});
  }
}

const Supply::Replicas& Supply::replicas_for(int to) const {
  static const Key everything;
  return by_kept_.at(kept_.empty() ? everything : coordinates(change_.to.mesh.spots(to), kept_));
}

std::vector<Piece> Supply::pieces(int to, int index, const Box& box) const {
  const Replicas& replicas = replicas_for(to);
  auto at = replicas.begin();
  if (change_.from.mesh.contains(to))
    at = replicas.find(coordinates(change_.from.mesh.spots(to), replicating_));
  else
    std::advance(at, index % static_cast<int>(replicas.size()));
  std::vector<Piece> found;
  std::vector<Box> missing{box};
  for (size_t tried = 0; tried < replicas.size() && !missing.empty(); ++tried) {
    std::vector<Box> still;
    for (const Box& part : missing)
      for (Piece& piece : from_replica(at->second, to, index, part)) {
        if (piece.from.empty())
          still.push_back(std::move(piece.box));
        else
          found.push_back(std::move(piece));
      }
    missing = std::move(still);
    if (++at == replicas.end()) at = replicas.begin();
  }
  if (!missing.empty()) base::fail_input("{}: no rank holds {}", to_string(change_), to_string(missing.front()));
  return found;
}

// Term by term, each piece is cut by what the holders of the next term have of it; what no holder has goes on without that term.
std::vector<Piece> Supply::from_replica(const Terms& terms, int to, int index, const Box& box) const {
  std::vector<Piece> pieces{{to, box, {}}};
  for (const auto& [term, holders] : terms) {
    std::vector<const Holder*> order;  // itself, then the others in turn: an id with several owners is not always asked of the first
    for (const Holder& holder : holders)
      if (holder.rank == to) order.push_back(&holder);
    for (size_t k = 0; k < holders.size(); ++k)
      if (const Holder& holder = holders[(k + static_cast<size_t>(index)) % holders.size()]; holder.rank != to) order.push_back(&holder);

    std::vector<Piece> next;
    for (const Piece& piece : pieces) {
      std::vector<Box> left{piece.box};
      for (const Holder* holder : order) {
        for (const Box& held : holder->boxes) {
          std::vector<Box> rest;
          for (const Box& part : left) {
            const auto shared = intersect(part, held);
            if (!shared) {
              rest.push_back(part);
              continue;
            }
            next.push_back({to, *shared, piece.from});
            next.back().from.push_back(holder->rank);
            for (Box& outside : subtract(part, held)) rest.push_back(std::move(outside));
          }
          left = std::move(rest);
        }
        if (left.empty()) break;
      }
      for (Box& part : left) next.push_back({to, std::move(part), piece.from});
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace cairn::mesh
