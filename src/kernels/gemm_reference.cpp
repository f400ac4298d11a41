// The products of a linear layer as plain ATen operations.
#include "kernels/gemm.h"

#include "kernels/aten.h"

namespace cairn::kernels::reference {
namespace {

void write(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const at::Tensor product = at::matmul(a, b);
  accumulate ? to.add_(product) : to.copy_(product);
}

}  // namespace

void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) { write(y, x, w.t(), false); }

void linear_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate) { write(dx, dy, w, accumulate); }

void linear_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) { write(dw, dy.t(), x, accumulate); }

}  // namespace cairn::kernels::reference
