// Rotary position embedding on a GPU: from tensors to pointers.
#include "kernels/rope_cuda.h"

#include "kernels/aten.h"
#include "kernels/cuda_tensor.h"
#include "kernels/rope.h"
#include "kernels/rope_kernel.h"

namespace cairn::kernels {

bool rope_on_cuda(const at::Tensor& x, const RopeTable& table, int64_t position, bool inverse, const at::Tensor* from) {
  const at::Tensor& source = from ? *from : x;
  if (!is_on_gpu(x) || (x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kFloat) || x.stride(3) != 1 ||
      !all_sums(x, table.cos, table.sin) || source.device() != x.device() || source.scalar_type() != x.scalar_type() ||
      source.stride(3) != 1)
    return false;
  const OnDeviceOf device(x.device());
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
  check_started(launch_rope(launch, stream_of(x)), "rotary embedding");
  return true;
}

bool rope_back_on_cuda(const at::Tensor& x, const HeadGradients& from, const RopeTable& table, int64_t position) {
  const auto is_like = [&](const at::Tensor& part) {
    return part.device() == x.device() && part.scalar_type() == x.scalar_type() && part.stride(3) == 1;
  };
  if (!all_of_kernels(x) || !all_sums(x, table.cos, table.sin) || !is_like(from.q) || !is_like(from.k) || !is_like(from.v)) return false;
  const OnDeviceOf device(x.device());
  const int64_t half = table.cos.size(1);
  const auto source = [](const at::Tensor& part, bool turned) {
    return RopeGatherLaunch::Source{.from = part.const_data_ptr(),
                                    .heads = part.size(2),
                                    .batch_stride = part.stride(0),
                                    .row_stride = part.stride(1),
                                    .head_stride = part.stride(2),
                                    .turned = turned};
  };
  const RopeGatherLaunch launch{.elements = elements_of(x),
                                .x = x.mutable_data_ptr(),
                                .sources = {source(from.q, true), source(from.k, true), source(from.v, false)},
                                .cos = table.cos.const_data_ptr<float>() + position * half,
                                .sin = table.sin.const_data_ptr<float>() + position * half,
                                .batch = x.size(0),
                                .length = x.size(1),
                                .half = half,
                                .row_stride = x.size(2) * x.size(3)};
  check_started(launch_rope_gather(launch, stream_of(x)), "rotary embedding's gradient");
  return true;
}

}  // namespace cairn::kernels
