// A multi-layer perceptron of plain tensors, for small tasks.
#pragma once
#include <cstdint>
#include <vector>

#include "task/params.h"

namespace cairn::base {
struct Random;
}

namespace cairn::task {

// Starting values for layers from widths[0] inputs to widths.back() outputs: "layers.0.weight" [in, out], "layers.0.bias" [1, out], ...
// Weights are normal with deviation sqrt(2 / in), those of the last layer times `last`.
Params mlp(const std::vector<int64_t>& widths, const base::Random& random, double last = 1);

// x [..., in] through the layers, with max(0, x) between them: [..., out]. Of repeated() parameters, x is [n, examples, in].
at::Tensor run_mlp(const Params& params, at::Tensor x);

}  // namespace cairn::task
