#pragma once
#include <cstdint>
#include <vector>

#include "sync/options.h"

namespace cairn::sync {

// The neighbours of each island in a round, itself among them, in ascending order: one row per island. A function of seed, round and island
// alone, so every island knows all rows. `neighbours` is the expected number of others, for Topology::random only.
std::vector<std::vector<int>> mixing_rows(Topology topology, int islands, double neighbours, uint64_t seed, int64_t round);

}  // namespace cairn::sync
