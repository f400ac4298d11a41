#pragma once
#include <vector>

#include "kernels/rope.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The rotation tables of a shape with its rope scaling, for `rows` positions.
kernels::RopeTable rope_angles(const DecoderShape& shape, int64_t rows, const at::TensorOptions& options);

// The frequency (radians per position) of each of the head_dim / 2 pairs, and the factor on cosine and sine (1 except for yarn).
std::vector<double> rope_frequencies(const DecoderShape& shape);
double rope_magnitude(const RopeScaling& scaling);

}  // namespace cairn::model
