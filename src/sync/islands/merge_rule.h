#pragma once
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync {

// How the updates of several islands become one.
struct MergeRule {
  std::string kind = "mean";  // as sync.island.merge has it
  double trim = 0.25;
};

// One island's update and how much it counts.
struct Contribution {
  at::Tensor values;  // fp32, one dim; may be used as scratch
  double weight = 1;
};

// The contributions in the order of the islands, as one. The same bits on every machine: one rounding after the other, in this order.
// Values that are not finite do not count, and neither do those of their island: a mean of what is left; undefined where nothing is.
//
//   mean    weighted
//   clip    weighted, after each was scaled to the median of the norms where it is longer: none can pull further than half of the others
//   trim    of each number the highest and lowest share are left out (at least one each where there are three or more), then the mean
//   median  of each number
at::Tensor merge(const MergeRule& rule, std::vector<Contribution>& contributions);

}  // namespace cairn::sync
