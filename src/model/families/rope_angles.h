#pragma once
#include <vector>

#include "kernels/rope.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The rotation tables of a shape, stretched as its rope_scaling says: `rows` positions.
kernels::RopeTable rope_angles(const DecoderShape& shape, int64_t rows, const at::TensorOptions& options);

// Radians per position of each pair of elements, head_dim / 2 of them, and the factor on cosine and sine (1 but for yarn).
std::vector<double> rope_frequencies(const DecoderShape& shape);
double rope_magnitude(const RopeScaling& scaling);

}  // namespace cairn::model
