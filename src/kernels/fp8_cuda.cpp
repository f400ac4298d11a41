// Eight bits on a GPU: from tensors to pointers.
#include "kernels/fp8_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "kernels/aten.h"
#include "kernels/cuda_tensor.h"
#include "kernels/fp8_kernel.h"

namespace cairn::kernels {

bool to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& known) {
  if (!x.is_cuda() || x.scalar_type() != at::kBFloat16 || x.stride(1) != 1 || (x.size(0) > 1 && x.stride(0) % 8 != 0) ||
      reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0 || x.size(0) == 0)
    return false;
  const OnDeviceOf device(x.device());
  const int64_t rows = x.size(0), columns = x.size(1), filled = (rows + 15) / 16 * 16;
  const int64_t stride = rows > 1 ? x.stride(0) : columns;
  const bool told = known.defined();
  CAIRN_CHECK(!told || (known.scalar_type() == at::kInt && known.device() == x.device() && known.numel() <= kFp8Parts),
              "a largest magnitude in {} words", told ? known.numel() : 0);
  const int parts = told ? static_cast<int>(known.numel()) : fp8_parts(rows, columns);
  const at::Tensor largest = told ? known : at::empty({parts}, x.options().dtype(at::kInt));
  if (!told)
    check_started(launch_fp8_largest({.largest = reinterpret_cast<unsigned*>(largest.mutable_data_ptr<int>()),
                                      .x = x.const_data_ptr(),
                                      .rows = rows,
                                      .columns = columns,
                                      .stride = stride,
                                      .parts = parts},
                                     stream_of(x)),
                  "largest magnitude");
  const auto type = x.options().dtype(code == Fp8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  made.factor = at::empty({1}, x.options().dtype(at::kFloat));
  if (forms.rows) made.rows = at::empty({rows, columns}, type);
  if (forms.columns) made.columns = at::empty({columns, filled}, type);
  check_started(launch_fp8({.by_rows = forms.rows ? made.rows.mutable_data_ptr() : nullptr,
                            .by_columns = forms.columns ? made.columns.mutable_data_ptr() : nullptr,
                            .factor = made.factor.mutable_data_ptr<float>(),
                            .x = x.const_data_ptr(),
                            .largest = reinterpret_cast<const unsigned*>(largest.const_data_ptr<int>()),
                            .rows = rows,
                            .columns = columns,
                            .stride = stride,
                            .filled = filled,
                            .parts = parts,
                            .e5m2 = code == Fp8::e5m2},
                           stream_of(x)),
                "codes of eight bits");
  return true;
}

bool has_fp8(const at::Device& device) {
  if (!device.is_cuda()) return false;
  const cudaDeviceProp* found = at::cuda::getDeviceProperties(device.index());
  return found->major * 10 + found->minor >= 89;
}

}  // namespace cairn::kernels
