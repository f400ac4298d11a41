#include "parallel/expert_copies/calibration.h"

#include <algorithm>
#include <vector>

#include "parallel/expert_copies/token_routes.h"

namespace cairn::parallel {

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
