#include "mesh/gradients.h"

#include "kernels/aten.h"
#include "kernels/fp8.h"
#include "kernels/grouped_gemm.h"
#include "kernels/low_precision.h"

namespace cairn::mesh {

// For sinks without an fp8 path. The codes are padded with zero rows, which add nothing.
void Gradients::outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) {
  const int64_t rows = in.columns.size(1);
  outer(id, kernels::from_fp8(in, rows, at::kBFloat16), kernels::from_fp8(dout, rows, at::kBFloat16));
}

void Gradients::outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) {
  const at::Tensor sum =
      at::empty({groups.size(), dout.size(1), in.size(1)}, kernels::is_half_precision(in) ? in.options().dtype(at::kFloat) : in.options());
  kernels::grouped_linear_backward_weight(sum, dout, in, groups);
  add(id, sum);
}

void Gradients::add_sum(ParamId id, const at::Tensor& rows) {
  add(id, kernels::is_half_precision(rows) ? rows.sum({0}, /*keepdim=*/false, at::kFloat) : rows.sum(0));
}

}  // namespace cairn::mesh
