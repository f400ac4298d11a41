#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::planner {

// Assigns items to bins, exactly items / bins to each, so that the sum of gain[item * bins + bin] is largest. Exact: min-cost flow by
// successive shortest paths. Items enter one at a time; each pushes others along the cheapest path to a bin with space (Bellman-Ford over
// the bins, where an edge from bin a to bin b is the item of a that loses least by moving). About items (items bins + bins^3) steps.
std::vector<int> assign_balanced(std::span<const int64_t> gain, int items, int bins);

}  // namespace cairn::planner
