// How many deletions a store survives before every order of every shard has lost its first stage, and the base model alone is left.
#pragma once
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "unlearn/orders.h"

namespace cairn::unlearn {

// 1 + 1/2 + ... + 1/n.
double harmonic(int64_t n);

// The mean number of requests, each for a slice drawn uniformly from shards * slices, until `first_slices` given ones of them are all hit:
// shards * slices * H(first_slices), the coupon collector's. Of a new store with cyclic orders, first_slices = shards * min(budget,
// slices); of SISA, the number of shards.
double expected_deletions(int64_t shards, int64_t slices, int64_t first_slices);

// How much of an order is left where these slices have lost records: the length of its beginning without any of them.
int64_t active_length(const Order& order, const std::vector<bool>& hit);

// Requests drawn at random until no order of any shard is left; `hit` [shard][slice] says what is lost already.
int64_t requests_until_dead(const std::vector<std::vector<Order>>& orders, std::vector<std::vector<bool>> hit, const base::Random& random);

}  // namespace cairn::unlearn
