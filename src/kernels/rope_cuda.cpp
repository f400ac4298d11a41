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

}  // namespace cairn::kernels
