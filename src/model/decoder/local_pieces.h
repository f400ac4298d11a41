#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "model/call.h"

namespace cairn::model {

// The intervals of one dim of a parameter that this rank has along tp, in the order in which its local tensor has them. `shape`: of the
// whole parameter.
std::vector<mesh::Interval> local_pieces(mesh::ParamId id, const std::vector<int64_t>& shape, size_t dim, const Call& call);

// Whether these are all of them.
bool is_whole(const std::vector<mesh::Interval>& pieces, int64_t size);

// Those columns of a matrix, and a matrix of `width` columns that has them there and 0 elsewhere.
at::Tensor take_columns(const at::Tensor& whole, const std::vector<mesh::Interval>& pieces);
at::Tensor spread_columns(const at::Tensor& local, const std::vector<mesh::Interval>& pieces, int64_t width);

}  // namespace cairn::model
