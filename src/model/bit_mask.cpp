#include "model/bit_mask.h"

#include <ATen/ops/constant_pad_nd.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::model {

at::Tensor pack_mask(const at::Tensor& kept) {
  CAIRN_CHECK(kept.dim() == 2 && kept.scalar_type() == at::kBool, "a mask of {} dims", kept.dim());
  const int64_t rows = kept.size(0), bytes = (kept.size(1) + 7) / 8;
  const at::Tensor padded = at::constant_pad_nd(kept.to(at::kByte), {0, 8 * bytes - kept.size(1)}).view({rows, bytes, 8});
  at::Tensor bits = at::zeros({rows, bytes}, padded.options());
  for (int64_t b = 0; b < 8; ++b) bits.add_(padded.select(2, b), 1 << b);
  return bits;
}

at::Tensor unpack_mask(const at::Tensor& bits, int64_t columns) {
  CAIRN_CHECK(bits.dim() == 2 && bits.scalar_type() == at::kByte && bits.size(1) == (columns + 7) / 8, "bits for {} columns", columns);
  at::Tensor kept = at::empty({bits.size(0), bits.size(1), 8}, bits.options().dtype(at::kBool));
  for (int64_t b = 0; b < 8; ++b) kept.select(2, b).copy_(bits.bitwise_and(1 << b));
  return kept.view({bits.size(0), -1}).narrow(1, 0, columns);
}

std::vector<int64_t> mask_shape(const std::vector<int64_t>& matrix) { return {matrix.at(0), (matrix.at(1) + 7) / 8}; }

at::Tensor full_mask(const std::vector<int64_t>& matrix, const at::TensorOptions& options) {
  const at::Tensor bits = at::full(mask_shape(matrix), 255, options.dtype(at::kByte));
  if (const int64_t last = matrix[1] % 8; last > 0) bits.select(1, bits.size(1) - 1).fill_((1 << last) - 1);
  return bits;
}

}  // namespace cairn::model
