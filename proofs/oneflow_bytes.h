#pragma once
#include <cstdint>
#include <vector>

#include "planner/sbp/signatures.h"

namespace cairn::study {

// The fewest elements that must cross between ranks to turn one placement of a matrix into another, from the sets of elements that each
// rank has and wants. Shares no code with redistribution: dims may be uneven, and axes may split the same dim.
int64_t least_elements(const mesh::Mesh& mesh, const std::vector<int64_t>& shape, const planner::NdSbp& from, const planner::NdSbp& to);

}  // namespace cairn::study
