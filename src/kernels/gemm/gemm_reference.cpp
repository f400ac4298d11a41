// The GEMMs of a linear layer in plain ATen operations.
#include "kernels/gemm.h"

#include "kernels/aten.h"

namespace cairn::kernels::reference {
namespace {

// On a GPU half-precision products can be written in fp32; the CPU's libraries round them to the inputs' precision first.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType into) {
  return a.is_cuda() && into == at::kFloat ? at::mm(a, b, into) : at::mm(a, b);
}

// Where the output has the inputs' precision, straight into it.
void write(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  at::Tensor out = to;
  if (accumulate) {
    a.scalar_type() == to.scalar_type() ? out.addmm_(a, b) : out.add_(product(a, b, to.scalar_type()));
  } else {
    a.scalar_type() == to.scalar_type() ? at::mm_out(out, a, b) : out.copy_(product(a, b, to.scalar_type()));
  }
}

}  // namespace

void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto) {
  if (onto && !y.is_same(*onto)) y.copy_(*onto);
  write(y, x, w.t(), onto != nullptr);
}

void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate) {
  write(dx, dy, w, accumulate);
}

void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  write(dw, dy.t(), x, accumulate);
}

}  // namespace cairn::kernels::reference
