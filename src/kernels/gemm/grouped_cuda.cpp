// The function behind at::_grouped_mm, which itself would make a new tensor each time: results go straight to where they belong.
#include "kernels/gemm/grouped_cuda.h"

#include <optional>

#include <ATen/native/cuda/GroupMM.h>

#include "kernels/aten.h"
#include "kernels/gemm/fused_gemm_cuda.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kElementsOf16Bytes = 8;

// The kernel reads and writes rows by the tensor memory accelerator, which moves 16 bytes at least.
bool has_whole_rows(const at::Tensor& x) {
  const int64_t last = x.dim() - 1;
  return x.scalar_type() == at::kBFloat16 && x.stride(last) == 1 && x.size(last) % kElementsOf16Bytes == 0 &&
         x.stride(last - 1) % kElementsOf16Bytes == 0 && x.stride(last - 1) >= x.size(last) &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

bool fits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() && is_hopper(a.device()) && a.size(0) > 0 && has_whole_rows(a) && has_whole_rows(b);
}

// The row after the last of each group.
at::Tensor ends_of(const RowGroups& groups, const at::Device& device) { return groups.counts().to(device).cumsum(0, at::kInt); }

void multiply_groups(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const RowGroups& groups) {
  at::cuda::detail::bf16bf16_grouped_mm(a, b, ends_of(groups, a.device()), std::nullopt, out);
}

}  // namespace

bool grouped_linear_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups) {
  if (!fits(x, w) || !has_whole_rows(y)) return false;
  multiply_groups(y, x, w.transpose(1, 2), groups);
  return true;
}

bool grouped_linear_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups) {
  if (!fits(dy, w) || !has_whole_rows(dx)) return false;
  multiply_groups(dx, dy, w, groups);
  return true;
}

bool grouped_linear_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                            bool accumulate) {
  if (!fits(dy, x)) return false;
  if (!accumulate && has_whole_rows(dw)) {
    multiply_groups(dw, dy.t(), x, groups);
    return true;
  }
  const at::Tensor found = at::empty(dw.sizes(), dy.options());
  if (!has_whole_rows(found)) return false;
  multiply_groups(found, dy.t(), x, groups);
  accumulate ? dw.add_(found) : dw.copy_(found);
  return true;
}

}  // namespace cairn::kernels
