// Rotary position embedding on a GPU: from tensors to pointers.
#include "kernels/layers/rope_cuda.h"

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/layers/rope_kernel.h"
#include "kernels/rope.h"

namespace cairn::kernels {

bool rope_on_cuda(const at::Tensor& x, const RopeTable& table, int64_t position, bool inverse, const at::Tensor* from) {
  const at::Tensor& source = from ? *from : x;
  if (!is_on_gpu(x) || (x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kFloat) || x.stride(3) != 1 ||
      !all_fp32(x, table.cos, table.sin) || source.device() != x.device() || source.scalar_type() != x.scalar_type() ||
      source.stride(3) != 1)
    return false;
  const CudaDeviceGuard device(x.device());
  const int64_t half = table.cos.size(1);
  const RopeLaunch launch{.elements = elements_of(x),
                          .x = x.mutable_data_ptr(),
                          .from = source.const_data_ptr(),
                          .cos = table.cos.const_data_ptr<float>() + position * half,
                          .sin = table.sin.const_data_ptr<float>() + position * half,
                          .batch = x.size(0),
                          .length = x.size(1),
                          .heads = x.size(2),
                          .half = half,
                          .batch_stride = x.stride(0),
                          .row_stride = x.stride(1),
                          .head_stride = x.stride(2),
                          .from_batch_stride = source.stride(0),
                          .from_row_stride = source.stride(1),
                          .from_head_stride = source.stride(2),
                          .inverse = inverse};
  check_launch(launch_rope(launch, stream_of(x)), "rotary embedding");
  return true;
}

bool rope_backward_on_cuda(const at::Tensor& x, const QkvGradients& from, const RopeTable& table, int64_t position) {
  const auto is_like = [&](const at::Tensor& part) {
    return part.device() == x.device() && part.scalar_type() == x.scalar_type() && part.stride(3) == 1;
  };
  if (!all_kernel_inputs(x) || !all_fp32(x, table.cos, table.sin) || !is_like(from.q) || !is_like(from.k) || !is_like(from.v)) return false;
  const CudaDeviceGuard device(x.device());
  const int64_t half = table.cos.size(1);
  const auto source = [](const at::Tensor& part, bool rotated) {
    return RopeBackwardLaunch::Source{.from = part.const_data_ptr(),
                                      .heads = part.size(2),
                                      .batch_stride = part.stride(0),
                                      .row_stride = part.stride(1),
                                      .head_stride = part.stride(2),
                                      .rotated = rotated};
  };
  const RopeBackwardLaunch launch{.elements = elements_of(x),
                                  .x = x.mutable_data_ptr(),
                                  .sources = {source(from.q, true), source(from.k, true), source(from.v, false)},
                                  .cos = table.cos.const_data_ptr<float>() + position * half,
                                  .sin = table.sin.const_data_ptr<float>() + position * half,
                                  .batch = x.size(0),
                                  .length = x.size(1),
                                  .half = half,
                                  .row_stride = x.size(2) * x.size(3)};
  check_launch(launch_rope_backward(launch, stream_of(x)), "rotary embedding's gradient");
  return true;
}

}  // namespace cairn::kernels
