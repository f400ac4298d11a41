#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "model/call.h"

namespace cairn::model {

// Dropout of what an adapter reads: the mask of an element is a function of its token and of its column in the whole input, so it is the
// same for any micro-batch, sharding or recomputation.
struct AdapterDropout {
  std::string name;  // of the layer: every adapter has masks of its own
  double rate = 0;

  bool is_on(const Call& call) const { return rate > 0 && call.trains(); }
  // x [rows, this rank's columns], or where the dropout is on a copy of it with the mask. `columns`: where these lie in the whole input.
  at::Tensor of(const at::Tensor& x, int64_t first_row, const std::vector<mesh::Interval>& columns, const Call& call) const;
  // In place.
  void apply(const at::Tensor& x, int64_t first_row, const std::vector<mesh::Interval>& columns, const Call& call) const;
};

}  // namespace cairn::model
