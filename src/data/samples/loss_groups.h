// Groups of samples with similar losses: k-means in one dimension.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::data {

struct LossGroups {
  std::vector<double> centers;  // from the smallest
  std::vector<int64_t> sizes;
  std::vector<int32_t> group;  // of each loss
  int iterations = 0;
};

// `groups` groups of finite losses. The start is deterministic: centre k is the loss at quantile (k + 1/2) / groups. Then Lloyd's algorithm
// until no centre moves by 1e-4, at most 100 times; an empty group keeps its centre. Above 10^6 losses it works on a histogram of 4,096
// bins. Where all losses are equal, groups are consecutive losses, equally many in each.
LossGroups group_losses(std::span<const float> losses, int64_t groups);

}  // namespace cairn::data
