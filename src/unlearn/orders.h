// In which orders the slices of a shard are trained. A slice that comes late in some order costs little when it loses a record.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "unlearn/options.h"

namespace cairn::unlearn {

using Order = std::vector<int64_t>;  // slices

// slices!, or the largest number where that is larger.
int64_t count_of_orders(int64_t slices);

// `budget` orders: the rotations of 0, 1, ...; beyond `slices`, rotations of what follows a common beginning of length 1, then 2, and so
// on, as many for each beginning.
std::vector<Order> cyclic_orders(int64_t slices, int64_t budget);

// Different orders, drawn at random.
std::vector<Order> random_orders(int64_t slices, int64_t budget, const base::Random& random);

// All of them.
std::vector<Order> all_orders(int64_t slices);

// At most one order for each slice, made by `slices` - 1 assignments such that slices that are likely to lose a record come late. The score
// of an order is the sum over n of n (1 - p_1 - ... - p_n)^t: the length that is left after t deletions. Those of the highest score.
std::vector<Order> matching_orders(const std::vector<double>& probabilities, double deletions, int64_t budget);

// The orders of each shard, as the options say. Refuses budgets and probabilities that cannot be, naming the key.
std::vector<std::vector<Order>> orders_of_shards(const UnlearnOptions& options);

std::string to_text(const Order& order);  // "2.3.0.1"

}  // namespace cairn::unlearn
