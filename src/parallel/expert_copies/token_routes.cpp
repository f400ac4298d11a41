#include "parallel/expert_copies/token_routes.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::parallel {

std::vector<int> targets_of(const mesh::Ragged& placement, int expert, int source, const NodeOf& nodes) {
  std::vector<int> holders = placement.owners[static_cast<size_t>(expert)];
  std::sort(holders.begin(), holders.end());
  if (std::binary_search(holders.begin(), holders.end(), source)) return {source};
  std::vector<int> near;
  for (const int holder : holders)
    if (nodes[static_cast<size_t>(holder)] == nodes[static_cast<size_t>(source)]) near.push_back(holder);
  return near.empty() ? holders : near;
}

TokenRoutes::TokenRoutes(const mesh::Ragged& placement, std::span<const int64_t> counts, const NodeOf& nodes)
    : ranks_(nodes.size()), experts_(placement.owners.size()), nodes_(nodes), rows_(ranks_ * ranks_ * experts_, 0) {
  CAIRN_CHECK(counts.size() == ranks_ * experts_, "{} counts for {} ranks and {} experts", counts.size(), ranks_, experts_);
  for (int source = 0; source < static_cast<int>(ranks_); ++source) {
    for (int expert = 0; expert < static_cast<int>(experts_); ++expert) {
      const int64_t count = counts[static_cast<size_t>(source) * experts_ + static_cast<size_t>(expert)];
      if (count == 0) continue;
      const std::vector<int> targets = targets_of(placement, expert, source, nodes);
      const auto k = static_cast<int64_t>(targets.size());
      for (int64_t row = 0; row < std::min(count, k); ++row)  // rows row, row + k, row + 2 k, ... go to the same holder
        rows_[index(source, target_of_row(targets, source, row), expert)] += (count - row + k - 1) / k;
    }
  }
}

comm::CountMatrix TokenRoutes::matrix() const {
  comm::CountMatrix matrix{static_cast<int>(ranks_), std::vector<int64_t>(ranks_ * ranks_, 0)};
  for (size_t pair = 0; pair < ranks_ * ranks_; ++pair)
    for (size_t expert = 0; expert < experts_; ++expert) matrix.counts[pair] += rows_[pair * experts_ + expert];
  return matrix;
}

std::vector<int64_t> TokenRoutes::received() const {
  const comm::CountMatrix matrix = this->matrix();
  std::vector<int64_t> received(ranks_, 0);
  for (int from = 0; from < matrix.ranks; ++from)
    for (int to = 0; to < matrix.ranks; ++to) received[static_cast<size_t>(to)] += matrix.at(from, to);
  return received;
}

TokenRoutes::BusiestLink TokenRoutes::busiest() const {
  const comm::CountMatrix matrix = this->matrix();
  BusiestLink most;
  for (int rank = 0; rank < matrix.ranks; ++rank) {
    BusiestLink out, in;
    for (int peer = 0; peer < matrix.ranks; ++peer) {
      if (peer == rank) continue;
      const bool near = nodes_[static_cast<size_t>(peer)] == nodes_[static_cast<size_t>(rank)];
      (near ? out.inside : out.between) += matrix.at(rank, peer);
      (near ? in.inside : in.between) += matrix.at(peer, rank);
    }
    most.inside = std::max({most.inside, out.inside, in.inside});
    most.between = std::max({most.between, out.between, in.between});
  }
  return most;
}

}  // namespace cairn::parallel
