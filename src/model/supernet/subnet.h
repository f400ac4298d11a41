// How the blocks of an elastic model read Call::subnet.
#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "model/supernet/elastic_shape.h"

namespace cairn::model {

struct Call;

// Without a subnet everything runs.
bool runs_in(const Call& call, int64_t stage, int64_t place);
int64_t width_in(const Call& call, size_t layer, int64_t whole);

// The gradient of a prefix of a tensor: `value` in the first corner, zero elsewhere.
at::Tensor padded(const at::Tensor& value, const std::vector<int64_t>& sizes);
// Contributes dy^T x, the gradient of the upper left corner of a parameter of `sizes` [out, in].
void add_outer_prefix(mesh::Gradients& into, mesh::ParamId id, const at::Tensor& x, const at::Tensor& dy,
                      const std::vector<int64_t>& sizes);

}  // namespace cairn::model
