#include "parallel/expert_copies/copy_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::parallel {
namespace {

bool holds(const mesh::Ragged& table, int expert, int coordinate) {
  const std::vector<int>& owners = table.owners[static_cast<size_t>(expert)];
  return std::find(owners.begin(), owners.end(), coordinate) != owners.end();
}

// Shares of `total` in proportion to the loads of these experts, by largest remainder; ties to the lower expert.
std::vector<int64_t> proportional_shares(std::span<const int64_t> load, const std::vector<int>& experts, int64_t total) {
  int64_t sum = 0;
  for (const int expert : experts) sum += load[static_cast<size_t>(expert)];
  std::vector<int64_t> shares(experts.size(), 0), remainders(experts.size(), 0);
  if (sum == 0) return shares;
  int64_t left = total;
  for (size_t i = 0; i < experts.size(); ++i) {
    const __int128 exact = static_cast<__int128>(total) * load[static_cast<size_t>(experts[i])];
    shares[i] = static_cast<int64_t>(exact / sum);
    remainders[i] = static_cast<int64_t>(exact % sum);
    left -= shares[i];
  }
  std::vector<size_t> order(experts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return remainders[a] != remainders[b] ? remainders[a] > remainders[b] : experts[a] < experts[b]; });
  for (size_t i = 0; i < order.size() && left > 0; ++i, --left) shares[order[i]] += 1;
  return shares;
}

// Free slots by rank and by node.
class Slots {
 public:
  Slots(const mesh::Ragged& held, const NodeOf& nodes, int per_rank)
      : nodes_(nodes),
        free_(nodes.size(), per_rank),
        free_of_node_(static_cast<size_t>(*std::max_element(nodes.begin(), nodes.end())) + 1) {
    for (const std::vector<int>& owners : held.owners)
      for (size_t i = 1; i < owners.size(); ++i)
        free_[static_cast<size_t>(owners[i])] = std::max(0, free_[static_cast<size_t>(owners[i])] - 1);
    for (size_t rank = 0; rank < nodes.size(); ++rank) free_of_node_[static_cast<size_t>(nodes[rank])] += free_[rank];
  }

  // The rank for one more copy of the expert; -1: there is none.
  int best_for(const mesh::Ragged& placement, int expert) const {
    std::vector<bool> node_holds(free_of_node_.size(), false);
    for (const int owner : placement.owners[static_cast<size_t>(expert)])
      node_holds[static_cast<size_t>(nodes_[static_cast<size_t>(owner)])] = true;
    int best = -1;
    for (int rank = 0; rank < static_cast<int>(nodes_.size()); ++rank) {
      if (free_[static_cast<size_t>(rank)] == 0 || holds(placement, expert, rank)) continue;
      if (best < 0 || goes_before(rank, best, node_holds)) best = rank;
    }
    return best;
  }

  void take(int rank) {
    --free_[static_cast<size_t>(rank)];
    --free_of_node_[static_cast<size_t>(nodes_[static_cast<size_t>(rank)])];
  }

 private:
  bool goes_before(int a, int b, const std::vector<bool>& node_holds) const {
    const auto node_a = static_cast<size_t>(nodes_[static_cast<size_t>(a)]), node_b = static_cast<size_t>(nodes_[static_cast<size_t>(b)]);
    if (node_holds[node_a] != node_holds[node_b]) return !node_holds[node_a];
    if (free_of_node_[node_a] != free_of_node_[node_b]) return free_of_node_[node_a] > free_of_node_[node_b];
    if (node_a != node_b) return node_a < node_b;
    if (free_[static_cast<size_t>(a)] != free_[static_cast<size_t>(b)])
      return free_[static_cast<size_t>(a)] > free_[static_cast<size_t>(b)];
    return a < b;
  }

  const NodeOf& nodes_;
  std::vector<int> free_, free_of_node_;
};

void add_bytes(base::Checksum& sum, int64_t value) { sum.add(std::as_bytes(std::span(&value, 1))); }

void add_table(base::Checksum& sum, const mesh::Ragged& table) {
  add_bytes(sum, static_cast<int64_t>(table.owners.size()));
  for (const std::vector<int>& owners : table.owners) {
    add_bytes(sum, static_cast<int64_t>(owners.size()));
    sum.add(std::as_bytes(std::span(owners)));
  }
}

mesh::Layout layout_along(const mesh::Mesh& mesh, const std::string& axis, mesh::Ragged table) {
  return {mesh, {.axes = {{axis, std::move(table)}}}};
}

}  // namespace

int overlap_degree(double seconds_before_layer, double bytes_per_s, int64_t expert_bytes) {
  CAIRN_CHECK(expert_bytes > 0 && bytes_per_s >= 0, "{} bytes of an expert at {} bytes/s", expert_bytes, bytes_per_s);
  const double fit = std::floor(std::max(0.0, seconds_before_layer) * bytes_per_s / static_cast<double>(expert_bytes));
  return static_cast<int>(std::min(fit, 1e6));
}

std::vector<int> most_loaded(std::span<const int64_t> load, int count) {
  std::vector<int> order(load.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(), [&](int a, int b) {
    const int64_t of_a = load[static_cast<size_t>(a)], of_b = load[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  order.erase(end, order.end());
  return order;
}

mesh::Ragged plan_copies(const mesh::Ragged& held, std::span<const int64_t> load, const NodeOf& nodes, CopyBudget budget) {
  const auto experts = static_cast<int>(held.owners.size()), ranks = static_cast<int>(nodes.size());
  CAIRN_CHECK(load.size() == held.owners.size(), "loads of {} experts for {}", load.size(), experts);
  int64_t taken = 0;  // slots, of the rank with most copies
  for (int rank = 0; rank < ranks; ++rank) taken = std::max(taken, copies_at(held, rank));
  const int overlap = std::clamp(budget.overlap, 0, experts), slots = std::clamp(budget.slots, 0, overlap + static_cast<int>(taken));
  mesh::Ragged placement = held;
  if (overlap == 0 || slots == 0 || ranks < 2) return placement;
  const std::vector<int> top = most_loaded(load, overlap);
  Slots free(held, nodes, slots);
  std::vector<int64_t> wanted(top.size(), ranks - 1);
  if (overlap > slots) {
    wanted = proportional_shares(load, top, int64_t{ranks} * slots);
    for (int64_t& copies : wanted) copies = std::clamp<int64_t>(copies, 1, ranks - 1);
  }
  for (size_t i = 0; i < top.size(); ++i) {
    std::vector<int>& owners = placement.owners[static_cast<size_t>(top[i])];
    while (static_cast<int64_t>(owners.size()) - 1 < wanted[i]) {
      const int rank = free.best_for(placement, top[i]);
      if (rank < 0) break;
      owners.push_back(rank);
      free.take(rank);
    }
  }
  return placement;
}

int64_t copies_in(const mesh::Ragged& placement) {
  int64_t copies = 0;
  for (const std::vector<int>& owners : placement.owners) copies += static_cast<int64_t>(owners.size()) - 1;
  return copies;
}

int64_t copies_at(const mesh::Ragged& placement, int coordinate) {
  int64_t copies = 0;
  for (const std::vector<int>& owners : placement.owners) copies += std::count(owners.begin() + 1, owners.end(), coordinate);
  return copies;
}

uint64_t plan_hash(const mesh::Ragged& placement) { return plan_hash(std::span(&placement, 1)); }

uint64_t plan_hash(std::span<const mesh::Ragged> layers) {
  base::Checksum sum;
  for (const mesh::Ragged& table : layers) add_table(sum, table);
  return sum.value();
}

mesh::LayoutChange sparse_all_gather(const mesh::Mesh& mesh, const std::string& axis, const mesh::Ragged& placement,
                                     const std::vector<int64_t>& shape) {
  return {layout_along(mesh, axis, mesh::homes(placement)), layout_along(mesh, axis, placement), shape};
}

mesh::LayoutChange sparse_reduce_scatter(const mesh::Mesh& mesh, const std::string& axis, const mesh::Ragged& placement,
                                         const std::vector<int64_t>& shape) {
  mesh::Ragged terms = placement;
  terms.partial = true;
  return {layout_along(mesh, axis, std::move(terms)), layout_along(mesh, axis, mesh::homes(placement)), shape};
}

}  // namespace cairn::parallel
