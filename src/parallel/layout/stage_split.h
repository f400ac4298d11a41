#pragma once
#include <cstdint>
#include <vector>

namespace cairn::parallel {

// How many blocks each stage has, so that the dearest stage is as cheap as it can be with neighbours staying together: the exact
// optimum. Of several, the one whose earlier stages are smaller. Refuses more stages than blocks.
std::vector<int64_t> balance_stages(const std::vector<double>& block_costs, int stages);

// Refuses a list of blocks per stage that does not give out `blocks` blocks, at least one to each stage.
void check_split(const std::vector<int64_t>& blocks_per_stage, int64_t blocks);

}  // namespace cairn::parallel
