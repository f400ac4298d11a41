#include "optim/orthogonalize.h"

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

// Chosen by Jordan et al. for the steepest rise at 0; the iteration then ends near 1, not at it.
constexpr double kFirst = 3.4445, kThird = -4.7750, kFifth = 2.0315;
constexpr double kNormMin = 1e-7;  // keeps a matrix of zeros from dividing by zero

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrix, int64_t iterations, at::ScalarType products) {
  CAIRN_CHECK(matrix.dim() == 2, "a tensor of {} dims is no matrix", matrix.dim());
  const bool tall = matrix.size(0) > matrix.size(1);  // the product of the shorter side is the smaller one
  at::Tensor x = tall ? matrix.t() : matrix;
  x = (x / x.square().sum().sqrt().clamp_min(kNormMin)).to(products);  // no singular value above 1, but for roundings
  for (int64_t i = 0; i < iterations; ++i) {
    const at::Tensor gram = x.mm(x.t());
    const at::Tensor polynomial = gram.addmm(gram, gram, kThird, kFifth);
    x = x.addmm(polynomial, x, kFirst);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type());
}

at::Tensor orthogonalize(const at::Tensor& matrix, int64_t iterations) {
  return orthogonalize(matrix, iterations, matrix.is_cuda() ? at::kBFloat16 : matrix.scalar_type());
}

}  // namespace cairn::optim
