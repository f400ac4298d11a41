#include "mesh/chunked_gradients.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"

namespace cairn::mesh {
namespace {

// sum = or += dout^T in; the first call allocates the sum.
template <typename Matrix>
void add_product(at::Tensor& sum, const Matrix& in, const Matrix& dout, int64_t outputs, int64_t inputs, const at::TensorOptions& options) {
  const bool begun = sum.defined();
  if (!begun) sum = at::empty({outputs, inputs}, options.dtype(at::kFloat));
  kernels::linear_backward_weight(sum, dout, in, /*accumulate=*/begun);
}

}  // namespace

ChunkedGradients::ChunkedGradients(Gradients& into, const std::vector<ParamId>& ids, int64_t parts) : into_(into) {
  for (const ParamId& id : ids)
    if (parts > 1 && into_.accumulates_in_fp32(id)) into_.expect_more(id, parts - 1);
}

at::Tensor& ChunkedGradients::sum_of(ParamId id) {
  const auto found = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& one) { return one.id == id; });
  return found != sums_.end() ? found->value : sums_.emplace_back(Sum{id, {}}).value;
}

void ChunkedGradients::outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) {
  if (into_.accumulates_in_fp32(id)) return into_.outer(id, in, dout);
  add_product(sum_of(id), in, dout, dout.size(1), in.size(1), in.options());
}

void ChunkedGradients::outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) {
  if (into_.accumulates_in_fp32(id)) return into_.outer_fp8(id, in, dout);
  add_product(sum_of(id), in, dout, dout.columns.size(0), in.columns.size(0), in.columns.options());
}

void ChunkedGradients::outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) {
  if (into_.accumulates_in_fp32(id)) return into_.outer_grouped(id, in, dout, groups);
  Gradients::outer_grouped(id, in, dout, groups);
}

void ChunkedGradients::add(ParamId id, const at::Tensor& gradient) {
  if (into_.accumulates_in_fp32(id)) return into_.add(id, gradient);
  at::Tensor& sum = sum_of(id);
  sum.defined() ? sum.add_(gradient) : sum = gradient.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

void ChunkedGradients::add_rows(ParamId, const at::Tensor&, const at::Tensor&) {
  CAIRN_CHECK(false, "embedding gradients are not chunked");
}
void ChunkedGradients::expect_more(ParamId, int64_t) { CAIRN_CHECK(false, "a chunk cannot be chunked again"); }

void ChunkedGradients::flush() {
  for (const Sum& one : std::exchange(sums_, {})) into_.add(one.id, one.value);
}

}  // namespace cairn::mesh
