#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sync/sync.h"

namespace cairn::sync {

// Islands average with a few others now and then, and once with all, at the end: where they have talked at all, however little, the average
// of poor models is a good one.
std::unique_ptr<Sync> make_gossip(const SyncOptions& options, Replica replica);

// Whom each island averages with in a round, itself among them, in ascending order: a row for each island. Every island can tell what the
// others will ask it for, since the draw depends on seed, round and island alone. Rows are weighted evenly, so the mixing matrix is
// row-stochastic; that of `random` does not keep the mean, the others do.
std::vector<std::vector<int>> mixing_rows(const std::string& topology, int islands, double neighbours, uint64_t seed, int64_t round);

}  // namespace cairn::sync
