// Eight bits on a GPU: from tensors to pointers.
#include "kernels/fp8_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_tensor.h"
#include "kernels/fp8_kernel.h"

namespace cairn::kernels {

namespace {

// As the kernels read it.
bool fits_kernels(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.stride(1) == 1 && (x.size(0) <= 1 || x.stride(0) % 8 == 0) &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.size(0) > 0;
}

int64_t stride_of(const at::Tensor& x) { return x.size(0) > 1 ? x.stride(0) : x.size(1); }

void check_known(const at::Tensor& known, const at::Tensor& x) {
  CAIRN_CHECK(known.scalar_type() == at::kInt && known.device() == x.device() && known.numel() <= kFp8Parts,
              "a largest magnitude in {} words", known.numel());
}

// Room for codes of x, and all of a launch but what says what is coded.
Fp8Launch launch_into(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& largest) {
  const int64_t rows = x.size(0), columns = x.size(1), filled = (rows + 15) / 16 * 16;
  const auto type = x.options().dtype(code == Fp8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  made.factor = at::empty({1}, x.options().dtype(at::kFloat));
  if (forms.rows) made.rows = at::empty({rows, columns}, type);
  if (forms.columns) made.columns = at::empty({columns, filled}, type);
  return {.by_rows = forms.rows ? made.rows.mutable_data_ptr() : nullptr,
          .by_columns = forms.columns ? made.columns.mutable_data_ptr() : nullptr,
          .factor = made.factor.mutable_data_ptr<float>(),
          .x = x.const_data_ptr(),
          .largest = reinterpret_cast<const unsigned*>(largest.const_data_ptr<int>()),
          .rows = rows,
          .columns = columns,
          .stride = stride_of(x),
          .filled = filled,
          .parts = static_cast<int>(largest.numel()),
          .e5m2 = code == Fp8::e5m2};
}

}  // namespace

bool to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& known) {
  if (!fits_kernels(x)) return false;
  const OnDeviceOf device(x.device());
  at::Tensor largest = known;
  if (known.defined()) {
    check_known(known, x);
  } else {
    const int parts = fp8_parts(x.size(0), x.size(1));
    largest = at::empty({parts}, x.options().dtype(at::kInt));
    check_started(launch_fp8_largest({.largest = reinterpret_cast<unsigned*>(largest.mutable_data_ptr<int>()),
                                      .x = x.const_data_ptr(),
                                      .rows = x.size(0),
                                      .columns = x.size(1),
                                      .stride = stride_of(x),
                                      .parts = parts},
                                     stream_of(x)),
                  "largest magnitude");
  }
  check_started(launch_fp8(launch_into(made, x, code, forms, largest), stream_of(x)), "codes of eight bits");
  return true;
}

bool cross_entropy_to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets,
                                  const at::Tensor& scale, const at::Tensor& largest) {
  if (!fits_kernels(logits) || !all_sums(logits, lse, scale) || targets.device() != logits.device() || targets.scalar_type() != at::kLong ||
      !targets.is_contiguous())
    return false;
  const OnDeviceOf device(logits.device());
  check_known(largest, logits);
  Fp8Launch launch = launch_into(made, logits, Fp8::e5m2, {}, largest);
  launch.lse = lse.const_data_ptr<float>();
  launch.scale = scale.const_data_ptr<float>(), launch.scale_stride = scale.numel() == 1 ? 0 : 1;
  launch.targets = targets.const_data_ptr<int64_t>(), launch.ignore = kIgnoreTarget;
  check_started(launch_fp8(launch, stream_of(logits)), "codes of a cross entropy's gradient");
  return true;
}

bool has_fp8(const at::Device& device) {
  if (!device.is_cuda()) return false;
  const cudaDeviceProp* found = at::cuda::getDeviceProperties(device.index());
  return found->major * 10 + found->minor >= 89;
}

}  // namespace cairn::kernels
