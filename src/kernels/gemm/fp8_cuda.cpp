// fp8 on a GPU: from tensors to pointers.
#include "kernels/gemm/fp8_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/tensor.h"
#include "kernels/gemm/fp8_kernel.h"

namespace cairn::kernels {

namespace {

// Whether the kernels can read it.
bool fits_kernels(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.stride(1) == 1 && (x.size(0) <= 1 || x.stride(0) % 8 == 0) &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.size(0) > 0;
}

int64_t stride_of(const at::Tensor& x) { return x.size(0) > 1 ? x.stride(0) : x.size(1); }

void check_known(const at::Tensor& known, const at::Tensor& x) {
  CAIRN_CHECK(known.scalar_type() == at::kInt && known.device() == x.device() && known.numel() <= kFp8Parts, "an amax of {} words",
              known.numel());
}

// Allocates the codes of x and fills in the launch, all but the fields for logits.
Fp8Launch launch_into(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& amax) {
  const int64_t rows = x.size(0), columns = x.size(1), filled = (rows + 15) / 16 * 16;
  const auto type = x.options().dtype(code == Fp8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  made.factor = at::empty({1}, x.options().dtype(at::kFloat));
  if (forms.rows) made.rows = at::empty({rows, columns}, type);
  if (forms.columns) made.columns = at::empty({columns, filled}, type);
  return {.by_rows = forms.rows ? made.rows.mutable_data_ptr() : nullptr,
          .by_columns = forms.columns ? made.columns.mutable_data_ptr() : nullptr,
          .factor = made.factor.mutable_data_ptr<float>(),
          .x = x.const_data_ptr(),
          .amax = reinterpret_cast<const unsigned*>(amax.const_data_ptr<int>()),
          .rows = rows,
          .columns = columns,
          .stride = stride_of(x),
          .filled = filled,
          .parts = static_cast<int>(amax.numel()),
          .e5m2 = code == Fp8::e5m2};
}

}  // namespace

bool to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& known) {
  if (!fits_kernels(x)) return false;
  const CudaDeviceGuard device(x.device());
  at::Tensor amax = known;
  if (known.defined()) {
    check_known(known, x);
  } else {
    const int parts = fp8_parts(x.size(0), x.size(1));
    amax = at::empty({parts}, x.options().dtype(at::kInt));
    check_launch(launch_fp8_amax({.amax = reinterpret_cast<unsigned*>(amax.mutable_data_ptr<int>()),
                                  .x = x.const_data_ptr(),
                                  .rows = x.size(0),
                                  .columns = x.size(1),
                                  .stride = stride_of(x),
                                  .parts = parts},
                                 stream_of(x)),
                 "amax");
  }
  check_launch(launch_fp8(launch_into(made, x, code, forms, amax), stream_of(x)), "fp8 quantization");
  return true;
}

bool cross_entropy_to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets,
                                  const at::Tensor& scale, const at::Tensor& amax) {
  if (!fits_kernels(logits) || !all_fp32(logits, lse, scale) || targets.device() != logits.device() || targets.scalar_type() != at::kLong ||
      !targets.is_contiguous())
    return false;
  const CudaDeviceGuard device(logits.device());
  check_known(amax, logits);
  Fp8Launch launch = launch_into(made, logits, Fp8::e5m2, {}, amax);
  launch.lse = lse.const_data_ptr<float>();
  launch.scale = scale.const_data_ptr<float>(), launch.scale_stride = scale.numel() == 1 ? 0 : 1;
  launch.targets = targets.const_data_ptr<int64_t>(), launch.ignore = kIgnoreTarget;
  check_launch(launch_fp8(launch, stream_of(logits)), "fp8 quantization of a cross entropy gradient");
  return true;
}

bool has_fp8(const at::Device& device) {
  if (!device.is_cuda()) return false;
  const cudaDeviceProp* found = at::cuda::getDeviceProperties(device.index());
  return found->major * 10 + found->minor >= 89;
}

}  // namespace cairn::kernels
