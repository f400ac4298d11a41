// Weights under a saved bit mask (PERP, arXiv:2312.15230).
#pragma once
#include <memory>

#include "model/decoder/sparse_options.h"
#include "model/decoder/weight_form.h"

namespace cairn::model {

// The forms of options.weights; all other weights are plain. The masks are buffers NAME.mask (bit_mask.h) that keep everything at first.
std::shared_ptr<const WeightFormRule> make_sparse_rule(SparseOptions options);

}  // namespace cairn::model
