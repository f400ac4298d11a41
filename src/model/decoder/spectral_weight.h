// Sparse spectral training (arXiv 2405.15481): the weights of linear layers as U diag(s) V^T, of which few columns train at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "model/decoder/spectral_options.h"
#include "model/decoder/weight_form.h"

namespace cairn::model {

// Makes every linear layer of the blocks spectral. Refuses options.rank above the smaller width of a layer.
std::shared_ptr<const WeightFormRule> make_spectral_rule(SpectralOptions options);

// The parameters of one spectral layer, by index in the model. Vectors are rows: the active ones come first, in tensors of their own, and
// the frozen ones follow, so that both together are one matrix. s has the singular values in this order.
struct SpectralLayer {
  std::string name;                      // of the dense weight
  int32_t u = 0, v = 0, s = 0;           // trained: [rank, out], [rank, in], [values]
  int32_t u_frozen = -1, v_frozen = -1;  // [values - rank, out], [values - rank, in]; -1: all pairs are active
  int64_t in = 0, out = 0, rank = 0, values = 0;
  bool fan_in_fan_out = false;
};
// Those of a model, in running order; empty: it has none.
std::vector<SpectralLayer> spectral_layers(const Model& model);

// The singular value decomposition of a matrix [out, in], with vectors as rows and values in descending order. fp32; computed in fp64 on a
// CPU. The largest element of each row of u is positive, and vectors of values that are zero but for rounding follow from the other ones,
// so that close matrices have close decompositions. Undefined tensors where the matrix has values that are not finite.
struct SpectralFactors {
  at::Tensor u, s, v;  // [values, out], [values], [values, in]
};
SpectralFactors decompose(const at::Tensor& weight);
// u^T diag(s) v, [out, in].
at::Tensor spectral_product(const SpectralFactors& factors);

}  // namespace cairn::model
