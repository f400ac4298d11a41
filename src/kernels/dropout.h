// Dropout with a counter-based mask: a function of the token and the column, not of the order of draws.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// In place: x[r, c] becomes 0 where random.for_index(keys[r]).uniform_float(first_column + c) < rate, and x[r, c] / (1 - rate) elsewhere.
// x [rows, width], keys [rows] int64. A row's mask depends on its key alone, so rows may be on any rank, in any order, and may be
// recomputed. For a GPU the mask is made on the host, which waits for the keys.
void dropout(const at::Tensor& x, const at::Tensor& keys, const base::Random& random, double rate, int64_t first_column = 0);

}  // namespace cairn::kernels
