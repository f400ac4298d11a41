#include "unlearn/orders.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "unlearn/assignment.h"

namespace cairn::unlearn {
namespace {

constexpr int64_t kAllOrdersMax = 720;
constexpr int64_t kProbabilityBytesMax = 16 << 20;

// What follows the first `fixed` slices, rotated by `by`.
Order with_rotated_tail(const Order& order, int64_t fixed, int64_t by) {
  Order rotated = order;
  std::rotate(rotated.begin() + fixed, rotated.begin() + fixed + by, rotated.end());
  return rotated;
}

// Adds orders that begin as those do, with other tails: one for each beginning in turn, until there are `budget`.
void rotate_tails(std::vector<Order>& orders, int64_t fixed, int64_t budget) {
  const std::vector<Order> there = orders;
  std::map<Order, Order> by_beginning;
  std::vector<Order> beginnings;  // in the order of the first order with each
  for (const Order& order : there) {
    const Order beginning(order.begin(), order.begin() + fixed);
    if (by_beginning.emplace(beginning, order).second) beginnings.push_back(beginning);
  }
  const auto tail = static_cast<int64_t>(there.front().size()) - fixed;
  for (int64_t by = 1; by < tail; ++by)
    for (const Order& beginning : beginnings) {
      if (static_cast<int64_t>(orders.size()) == budget) return;
      orders.push_back(with_rotated_tail(by_beginning.at(beginning), fixed, by));
    }
}

Order ascending(int64_t slices) {
  Order order(static_cast<size_t>(slices));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

// sum over n of n (1 - p_1 - ... - p_n)^t
double score_of(const Order& order, const std::vector<double>& probabilities, double deletions) {
  double score = 0, sum = 0;
  for (size_t n = 0; n < order.size(); ++n) {
    sum += probabilities[static_cast<size_t>(order[n])];
    score += static_cast<double>(n + 1) * std::pow(std::max(0.0, 1 - sum), deletions);
  }
  return score;
}

std::vector<double> read_probabilities(const std::string& path, int64_t slices, int64_t shards) {
  std::istringstream words(base::read_file(path, kProbabilityBytesMax));
  std::vector<double> found;
  for (std::string word; words >> word;) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !(value >= 0 && value <= 1))
      base::fail_input("unlearning.delete_probs = {}: \"{}\" is no probability. Write numbers from 0 to 1, one for each slice.", path,
                       word.substr(0, 40));
    found.push_back(value);
  }
  const auto count = static_cast<int64_t>(found.size());
  if (count != slices && count != slices * shards)
    base::fail_input("unlearning.delete_probs = {}: it has {} numbers. Give {} (one for each slice) or {} (of every shard).", path, count,
                     slices, slices * shards);
  if (const double sum = std::accumulate(found.begin(), found.end(), 0.0); sum > 1 + 1e-9)
    base::fail_input("unlearning.delete_probs = {}: the probabilities sum to {:.4g}. A deletion falls into one slice: at most 1.", path,
                     sum);
  return found;
}

std::vector<std::vector<Order>> matched_shards(const UnlearnOptions& o) {
  if (o.delete_probs.empty())
    base::fail_input("unlearning.orders = matching: it needs to know where deletions fall. Set unlearning.delete_probs, or use cyclic.");
  if (o.budget > o.slices)
    base::fail_input("unlearning.budget = {}: matching makes one order for each of the {} slices. Set at most {}.", o.budget, o.slices,
                     o.slices);
  const std::vector<double> all = read_probabilities(o.delete_probs, o.slices, o.shards);
  std::vector<std::vector<Order>> orders;
  for (int64_t shard = 0; shard < o.shards; ++shard) {
    const bool of_all_shards = static_cast<int64_t>(all.size()) == o.slices;
    const auto first = all.begin() + (of_all_shards ? 0 : shard * o.slices);
    orders.push_back(matching_orders({first, first + o.slices}, o.expected_deletions, o.budget));
  }
  return orders;
}

}  // namespace

int64_t count_of_orders(int64_t slices) {
  int64_t count = 1;
  for (int64_t i = 2; i <= slices; ++i) {
    if (count > std::numeric_limits<int64_t>::max() / i) return std::numeric_limits<int64_t>::max();
    count *= i;
  }
  return count;
}

std::vector<Order> cyclic_orders(int64_t slices, int64_t budget) {
  CAIRN_CHECK(budget >= 1 && budget <= count_of_orders(slices), "{} orders of {} slices", budget, slices);
  std::vector<Order> orders;
  for (int64_t by = 0; by < std::min(slices, budget); ++by) orders.push_back(with_rotated_tail(ascending(slices), 0, by));
  for (int64_t fixed = 1; static_cast<int64_t>(orders.size()) < budget; ++fixed) rotate_tails(orders, fixed, budget);
  return orders;
}

std::vector<Order> random_orders(int64_t slices, int64_t budget, const base::Random& random) {
  CAIRN_CHECK(budget >= 1 && budget <= count_of_orders(slices), "{} orders of {} slices", budget, slices);
  std::vector<Order> orders;
  std::set<Order> known;
  for (uint64_t draw = 0; static_cast<int64_t>(orders.size()) < budget; ++draw) {
    Order order = ascending(slices);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.for_index(draw).below(i, i)]);
    if (known.insert(order).second) orders.push_back(std::move(order));
  }
  return orders;
}

std::vector<Order> all_orders(int64_t slices) {
  std::vector<Order> orders;
  Order order = ascending(slices);
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

std::vector<Order> matching_orders(const std::vector<double>& probabilities, double deletions, int64_t budget) {
  const auto slices = static_cast<int64_t>(probabilities.size());
  std::vector<Order> orders;
  for (int64_t slice = 0; slice < slices; ++slice) orders.push_back({slice});
  for (int64_t round = 1; round < slices; ++round) {
    std::vector<std::vector<double>> scores(orders.size(), std::vector<double>(orders.size(), -std::numeric_limits<double>::infinity()));
    for (size_t i = 0; i < orders.size(); ++i)
      for (int64_t slice = 0; slice < slices; ++slice) {
        if (std::ranges::find(orders[i], slice) != orders[i].end()) continue;
        Order longer = orders[i];
        longer.push_back(slice);
        scores[i][static_cast<size_t>(slice)] = score_of(longer, probabilities, deletions);
      }
    const std::vector<int64_t> next = best_assignment(scores);
    for (size_t i = 0; i < orders.size(); ++i) orders[i].push_back(next[i]);
  }
  std::ranges::stable_sort(orders, [&](const Order& a, const Order& b) {
    return score_of(a, probabilities, deletions) > score_of(b, probabilities, deletions);
  });
  orders.resize(static_cast<size_t>(std::min(budget, slices)));
  return orders;
}

std::vector<std::vector<Order>> orders_of_shards(const UnlearnOptions& o) {
  const auto shards = static_cast<size_t>(o.shards);
  if (o.method == Method::sisa) return {shards, {ascending(o.slices)}};
  if (!o.delete_probs.empty() && o.orders != OrderKind::matching)
    base::fail_input("unlearning.delete_probs = {}: only unlearning.orders = matching reads it. Leave it out.", o.delete_probs);
  const int64_t possible = count_of_orders(o.slices);
  if (o.orders == OrderKind::all) {
    if (possible > kAllOrdersMax)
      base::fail_input("unlearning.orders = all: {} slices have more than {} orders. Use cyclic with a budget, or at most 6 slices.",
                       o.slices, kAllOrdersMax);
    return {shards, all_orders(o.slices)};
  }
  if (o.budget > possible)
    base::fail_input("unlearning.budget = {}: {} slices have {} orders. Set at most that.", o.budget, o.slices, possible);
  if (o.orders == OrderKind::matching) return matched_shards(o);
  if (o.orders == OrderKind::cyclic) return {shards, cyclic_orders(o.slices, o.budget)};
  std::vector<std::vector<Order>> orders;
  const base::Random random = base::Random(static_cast<uint64_t>(o.partition_seed)).for_purpose("unlearning orders");
  for (size_t shard = 0; shard < shards; ++shard) orders.push_back(random_orders(o.slices, o.budget, random.for_index(shard)));
  return orders;
}

std::string to_text(const Order& order) { return fmt::format("{}", fmt::join(order, ".")); }

}  // namespace cairn::unlearn
