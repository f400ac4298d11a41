// A weight stored [in, out] is the weight of the input gradient of a layer that runs the other way, so the same kernels serve both layouts.
#include "model/decoder/dense_product.h"

#include "kernels/aten.h"
#include "kernels/gemm.h"

namespace cairn::model {

void dense_product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, bool fan_in_fan_out, const at::Tensor* onto) {
  if (!fan_in_fan_out) return kernels::linear(y, x, w, onto);
  if (onto && !onto->is_same(y)) y.copy_(*onto);
  kernels::linear_backward_input(y, x, w, /*accumulate=*/onto != nullptr);
}

void dense_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool fan_in_fan_out, bool accumulate) {
  if (!fan_in_fan_out) return kernels::linear_backward_input(dx, dy, w, accumulate);
  kernels::linear(dx, dy, w, accumulate ? &dx : nullptr);
}

at::Tensor dense_weight_gradient(const at::Tensor& x, const at::Tensor& dy, bool fan_in_fan_out) {
  const at::Tensor &rows = fan_in_fan_out ? x : dy, &columns = fan_in_fan_out ? dy : x;
  const at::Tensor sum =
      at::empty({rows.size(1), columns.size(1)}, x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  kernels::linear_backward_weight(sum, rows, columns);
  return sum;
}

}  // namespace cairn::model
