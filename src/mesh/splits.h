#pragma once
#include <cstdint>
#include <vector>

#include "mesh/placement.h"

namespace cairn::mesh {

// Splits that are not even, by what they are for.

// Coordinate c holds counts[c] indices, one after the other.
Split split_by_counts(int64_t dim, const std::vector<int64_t>& counts);

// The dim in 2n even chunks; coordinate c holds chunks c and 2n-1-c: under a causal mask every coordinate has the same work.
Split split_zigzag(int64_t dim, int64_t size, int parts);

// Several matrices stacked along the dim (query, key and value rows of one weight): each coordinate holds its even part of each of them.
// `unit` indices stay together (the rows of one head); every section must be whole units.
Split split_fused(int64_t dim, const std::vector<int64_t>& sections, int parts, int64_t unit = 1);

}  // namespace cairn::mesh
