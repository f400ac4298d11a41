// The quintic Newton-Schulz iteration of Muon. X is the matrix divided by its Frobenius norm, so that no singular value exceeds 1:
//
//   A = X X^T,   X <- a X + (b A + c A^2) X             (a, b, c) = (3.4445, -4.7750, 2.0315)
//
// It maps every singular value s to a s + b s^3 + c s^5 and leaves the singular vectors alone. The coefficients are Jordan's: the slope at
// 0 is as large as possible, so after five iterations singular values lie between about 0.7 and 1.2 instead of at 1.
#include "optim/orthogonalize.h"

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

constexpr double kFirst = 3.4445, kThird = -4.7750, kFifth = 2.0315;  // a, b, c
constexpr double kNormMin = 1e-7;                                     // keeps a matrix of zeros from dividing by zero

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrices, int64_t iterations, at::ScalarType products) {
  CAIRN_CHECK(matrices.dim() == 2 || matrices.dim() == 3, "orthogonalize takes a matrix or a batch of matrices, not a tensor of {} dims",
              matrices.dim());
  if (matrices.dim() == 2) return orthogonalize(matrices.unsqueeze(0), iterations, products)[0];
  const bool one = matrices.size(0) == 1;
  const bool tall = matrices.size(1) > matrices.size(2);  // the product of the shorter side is the smaller one
  at::Tensor x = tall ? matrices.transpose(1, 2) : matrices;
  x = (x / x.square().sum({1, 2}, /*keepdim=*/true).sqrt().clamp_min(kNormMin))
          .to(products);  // no singular value above 1, but for roundings
  for (int64_t i = 0; i < iterations; ++i) {
    if (one) {  // a product of single matrices has the better kernels
      const at::Tensor x0 = x[0], gram = x0.mm(x0.t());
      x = x0.addmm(gram.addmm(gram, gram, kThird, kFifth), x0, kFirst).unsqueeze(0);
    } else {
      const at::Tensor gram = x.bmm(x.transpose(1, 2));
      x = x.baddbmm(gram.baddbmm(gram, gram, kThird, kFifth), x, kFirst);
    }
  }
  return (tall ? x.transpose(1, 2) : x).to(matrices.scalar_type());
}

at::Tensor orthogonalize(const at::Tensor& matrices, int64_t iterations) {
  return orthogonalize(matrices, iterations, matrices.is_cuda() ? at::kBFloat16 : matrices.scalar_type());
}

}  // namespace cairn::optim
