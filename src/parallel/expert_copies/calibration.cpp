#include "parallel/expert_copies/calibration.h"

#include <algorithm>
#include <vector>

#include "comm/group.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "parallel/expert_copies/token_routes.h"

namespace cairn::parallel {
namespace {

std::chrono::nanoseconds nanoseconds_of(double seconds) { return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace

LayerCosts layer_costs(const comm::Group& group, const NodeOf& nodes, const ExpertSize& size) {
  const auto bytes_per_s = [&](bool same_node) {  // from the first rank to one inside or outside of its node
    for (size_t peer = 1; peer < nodes.size(); ++peer)
      if ((nodes[peer] == nodes[0]) == same_node)
        return group.world().transport().link_facts({group.ranks()[0], group.ranks()[peer]}).bytes_per_s;
    return 0.0;
  };
  double inside = bytes_per_s(true), between = bytes_per_s(false);
  if (inside == 0) inside = between;
  if (between == 0) between = inside;
  if (between == 0) return {};  // one rank
  const auto bytes = static_cast<double>(size.bytes), of_gradient = 4.0 * static_cast<double>(size.elements);
  return {.compute_row = nanoseconds_of(6.0 * static_cast<double>(size.elements) / size.flops_per_s),
          .move_inside = nanoseconds_of(4.0 * static_cast<double>(size.row_bytes) / inside),
          .move_between = nanoseconds_of(4.0 * static_cast<double>(size.row_bytes) / between),
          .copy_expert = nanoseconds_of((bytes + of_gradient) / between)};
}

std::chrono::nanoseconds layer_time(const mesh::Ragged& placement, std::span<const int64_t> counts, const NodeOf& nodes,
                                    const LayerCosts& costs) {
  const TokenRoutes routes(placement, counts, nodes);
  const std::vector<int64_t> received = routes.received();
  const TokenRoutes::BusiestLink busiest = routes.busiest();
  return *std::max_element(received.begin(), received.end()) * costs.compute_row + busiest.inside * costs.move_inside +
         busiest.between * costs.move_between;
}

mesh::Ragged calibrate(const mesh::Ragged& planned, std::span<const int64_t> counts, const NodeOf& nodes, CopyBudget budget,
                       const LayerCosts& costs) {
  const size_t experts = planned.owners.size();
  std::vector<int64_t> load(experts, 0);
  for (size_t i = 0; i < counts.size(); ++i) load[i % experts] += counts[i];
  mesh::Ragged larger = plan_copies(planned, load, nodes, budget);
  int64_t most_new = 0;  // that one rank receives or one home sends
  std::vector<int64_t> sent(nodes.size(), 0);
  for (size_t expert = 0; expert < experts; ++expert) {
    const size_t added = larger.owners[expert].size() - planned.owners[expert].size();
    sent[static_cast<size_t>(larger.owners[expert].front())] += static_cast<int64_t>(added);
  }
  for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank)
    most_new = std::max({most_new, sent[static_cast<size_t>(rank)], copies_at(larger, rank) - copies_at(planned, rank)});
  if (most_new == 0) return planned;
  const auto saved = layer_time(planned, counts, nodes, costs) - layer_time(larger, counts, nodes, costs);
  return saved > most_new * costs.copy_expert ? larger : planned;
}

}  // namespace cairn::parallel
