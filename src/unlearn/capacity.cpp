#include "unlearn/capacity.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::unlearn {
namespace {

bool any_active(const std::vector<Order>& orders, const std::vector<bool>& hit) {
  return std::ranges::any_of(orders, [&](const Order& order) { return active_length(order, hit) > 0; });
}

}  // namespace

double harmonic(int64_t n) {
  double sum = 0;
  for (int64_t i = n; i >= 1; --i) sum += 1.0 / static_cast<double>(i);
  return sum;
}

double expected_deletions(int64_t shards, int64_t slices, int64_t first_slices) {
  return static_cast<double>(shards * slices) * harmonic(first_slices);
}

int64_t active_length(const Order& order, const std::vector<bool>& hit) {
  const auto lost = std::ranges::find_if(order, [&](int64_t slice) { return hit[static_cast<size_t>(slice)]; });
  return lost - order.begin();
}

int64_t requests_until_dead(const std::vector<std::vector<Order>>& orders, std::vector<std::vector<bool>> hit, const base::Random& random) {
  const size_t shards = orders.size(), slices = orders.front().front().size();
  CAIRN_CHECK(hit.size() == shards, "{} shards, and losses of {}", shards, hit.size());
  std::vector<bool> alive(shards);
  for (size_t shard = 0; shard < shards; ++shard) alive[shard] = any_active(orders[shard], hit[shard]);
  auto left = std::ranges::count(alive, true);
  int64_t requests = 0;
  for (; left > 0; ++requests) {
    const uint64_t drawn = random.below(static_cast<uint64_t>(requests), shards * slices);
    const size_t shard = drawn / slices, slice = drawn % slices;
    if (!alive[shard] || hit[shard][slice]) continue;
    hit[shard][slice] = true;
    alive[shard] = any_active(orders[shard], hit[shard]);
    left -= alive[shard] ? 0 : 1;
  }
  return requests;
}

}  // namespace cairn::unlearn
