#pragma once
#include <cstdint>
#include <vector>

namespace cairn::parallel {

// The number of blocks of each stage that minimises the cost of the most expensive stage, with consecutive blocks per stage. Exact, by
// dynamic programming; of several optima the one whose earlier stages are smaller. Bad input: more stages than blocks.
std::vector<int64_t> balance_stages(const std::vector<double>& block_costs, int stages);

// Throws bad_input unless the list assigns exactly `blocks` blocks, at least one to each stage.
void check_split(const std::vector<int64_t>& blocks_per_stage, int64_t blocks);

}  // namespace cairn::parallel
