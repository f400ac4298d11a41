#pragma once
#include <cstdint>
#include <vector>

#include "mesh/placement.h"

namespace cairn::mesh {

// Splits that are not even, by their purpose.

// Uneven: coordinate c holds counts[c] consecutive indices.
Split split_by_counts(int64_t dim, const std::vector<int64_t>& counts);

// Zigzag, for context parallelism: the dim has 2n even chunks and coordinate c holds chunks c and 2n-1-c. Under a causal mask every
// coordinate has the same work.
Split split_zigzag(int64_t dim, int64_t size, int parts);

// Fused matrices, stacked along the dim (query, key and value rows of one weight): each coordinate holds an even part of each of them.
// `unit` indices stay together (the rows of one head); every section must be a multiple of `unit`.
Split split_fused(int64_t dim, const std::vector<int64_t>& sections, int parts, int64_t unit = 1);

}  // namespace cairn::mesh
