#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/options.h"

namespace cairn::sync {

// How the updates of several islands become one.
struct MergeRule {
  MergeKind kind = MergeKind::mean;
  double trim = 0.25;
};

// One island's update and its weight.
struct Contribution {
  at::Tensor values;  // fp32, one dimension; may be overwritten
  double weight = 1;
};

// Merges the contributions, given in the order of the islands. Bitwise identical on every machine: operations are rounded one by one in
// this order. An island with a value that is not finite is dropped. Undefined: no contribution is left.
//
//   mean    weighted mean
//   clip    weighted mean after updates longer than the median norm are scaled down to it: no island outweighs half of the others
//   trim    element by element, the mean without the largest and smallest share (at least one each, with three islands or more)
//   median  element by element
at::Tensor merge(const MergeRule& rule, std::vector<Contribution>& contributions);

}  // namespace cairn::sync
