#include "parallel/layout/stage_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::parallel {

std::vector<int64_t> balance_stages(const std::vector<double>& block_costs, int stages) {
  const int64_t blocks = static_cast<int64_t>(block_costs.size());
  if (stages < 1) base::fail_input("{} stages: must be at least 1", stages);
  if (stages > blocks) base::fail_input("{} stages, model has {} blocks: use at most {} stages", stages, blocks, blocks);
  for (int64_t i = 0; i < blocks; ++i)
    if (!std::isfinite(block_costs[i]) || block_costs[i] < 0)
      base::fail_input("block {} costs {}: must be a number, 0 or more", i, block_costs[i]);

  std::vector<double> before(blocks + 1, 0);  // cost of all blocks before this one
  std::partial_sum(block_costs.begin(), block_costs.end(), before.begin() + 1);
  // best[k][j]: the least possible cost of the most expensive of k stages that hold the first j blocks.
  //   best[k][j] = min over i of max(best[k-1][i], cost of blocks i..j-1);   last[k][j] = j - i for that i
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(blocks + 1, kNone));
  std::vector<std::vector<int64_t>> last(stages + 1, std::vector<int64_t>(blocks + 1, 0));
  best[0][0] = 0;
  for (int k = 1; k <= stages; ++k)
    for (int64_t j = k; j <= blocks; ++j)
      for (int64_t i = k - 1; i < j; ++i) {
        const double dearest = std::max(best[k - 1][i], before[j] - before[i]);
        if (dearest >= best[k][j]) continue;
        best[k][j] = dearest;
        last[k][j] = j - i;
      }
  std::vector<int64_t> split(stages);
  for (int64_t k = stages, j = blocks; k > 0; --k) {
    split[k - 1] = last[k][j];
    j -= split[k - 1];
  }
  return split;
}

void check_split(const std::vector<int64_t>& blocks_per_stage, int64_t blocks) {
  if (blocks_per_stage.empty()) base::fail_input("a split without stages: give the number of blocks of each stage");
  int64_t sum = 0;
  for (size_t stage = 0; stage < blocks_per_stage.size(); ++stage) {
    const int64_t count = blocks_per_stage[stage];
    if (count < 1 || count > blocks)
      base::fail_input("split [{}]: stage {} has {} blocks; each has at least 1, and the model has {}", fmt::join(blocks_per_stage, ", "),
                       stage, count, blocks);
    sum += count;
  }
  if (sum != blocks) base::fail_input("split [{}] assigns {} blocks, the model has {}", fmt::join(blocks_per_stage, ", "), sum, blocks);
}

}  // namespace cairn::parallel
