// The assignment problem.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::unlearn {

// Gives each row one column of its own such that the sum of scores is largest (Hungarian method, O(n^3)). `scores` is square; an entry of
// minus infinity is never taken. Throws broken_invariant where that cannot be.
std::vector<int64_t> best_assignment(const std::vector<std::vector<double>>& scores);

}  // namespace cairn::unlearn
