// GEMMs with fused epilogues: from tensors to pointers.
#include "kernels/gemm/fused_gemm_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/fused_gemm.h"
#include "kernels/gemm/fused_gemm_kernel.h"

namespace cairn::kernels {
namespace {

// The alignment that TMA requires: rows begin at multiples of 16 bytes.
bool fits_tma(const at::Tensor& x) {
  constexpr int64_t kTogether = 8, kMost = int64_t{1} << 31;
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && x.stride(1) == 1 &&
         x.stride(0) >= x.size(1) && x.size(1) % kTogether == 0 && x.stride(0) % kTogether == 0 && x.size(0) < kMost && x.size(1) < kMost &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
// Results are contiguous.
bool is_result(const at::Tensor& x) { return fits_tma(x) && x.is_contiguous(); }

bool has_kernel_for(const at::Tensor& x) { return has_hopper_gemms() && is_hopper(x.device()); }

bool is_worth_it(const at::Tensor& x, int64_t columns, MinTiles tiles) {
  return tiles == MinTiles::any ||
         gemm_tiles_down(x.size(0)) * gemm_tiles_across(columns) >= at::cuda::getDeviceProperties(x.device().index())->multiProcessorCount;
}

GemmLaunch gemm_of(const at::Tensor& x, const at::Tensor& w, bool fan_in_fan_out = false) {
  return {.x = x.const_data_ptr(),
          .w = w.const_data_ptr(),
          .x_stride = x.stride(0),
          .w_stride = w.stride(0),
          .rows = x.size(0),
          .in = x.size(1),
          .out = w.size(fan_in_fan_out ? 1 : 0),
          .fan_in_fan_out = fan_in_fan_out};
}

// fp8 codes (e4m3) by rows.
bool fits_tma(const Fp8Matrix& x) {
  constexpr int64_t kTogether = 16;
  return x.rows.defined() && x.rows.is_cuda() && x.rows.scalar_type() == at::kFloat8_e4m3fn && x.rows.dim() == 2 && x.rows.size(0) > 0 &&
         x.rows.size(1) > 0 && x.rows.is_contiguous() && x.rows.size(1) % kTogether == 0 &&
         reinterpret_cast<uintptr_t>(x.rows.const_data_ptr()) % 16 == 0;
}

GemmLaunch gemm_of(const Fp8Matrix& x, const Fp8Matrix& w) {
  GemmLaunch gemm = gemm_of(x.rows, w.rows);
  gemm.x_factor = x.factor.const_data_ptr<float>(), gemm.w_factor = w.factor.const_data_ptr<float>();
  return gemm;
}

bool is_rotatable(const at::Tensor& y, const RotatedHeads& rotated) {
  const int64_t half = rotated.table.cos.size(1);
  return (half == 32 || half == 64) && y.size(1) % (2 * half) == 0 && all_fp32(y, rotated.table.cos, rotated.table.sin);
}

bool start_rope(const GemmLaunch& gemm, const at::Tensor& y, const RotatedHeads& rotated) {
  const CudaDeviceGuard device(y.device());
  const int64_t half = rotated.table.cos.size(1);
  const GemmRopeLaunch launch{.gemm = gemm,
                              .y = y.mutable_data_ptr(),
                              .cos = rotated.table.cos.const_data_ptr<float>() + rotated.position * half,
                              .sin = rotated.table.sin.const_data_ptr<float>() + rotated.position * half,
                              .length = rotated.length,
                              .head_dim = 2 * half,
                              .rotated = rotated.heads * 2 * half};
  check_launch(launch_gemm_rope(launch, stream_of(y)), "GEMM with rotary embedding");
  return true;
}

}  // namespace

bool is_hopper(const at::Device& device) { return device.is_cuda() && at::cuda::getDeviceProperties(device.index())->major == 9; }

bool has_hopper_gemms() {
#if defined(CAIRN_HOPPER)
  return true;
#else
  return false;
#endif
}

bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, MinTiles tiles) {
  if (!is_result(gate_up) || !is_result(y) || !fits_tma(x) || !fits_tma(w) || !has_kernel_for(x) || !is_worth_it(x, w.size(0), tiles))
    return false;
  const CudaDeviceGuard device(x.device());
  const GemmSwigluLaunch launch{.gemm = gemm_of(x, w), .gate_up = gate_up.mutable_data_ptr(), .y = y.mutable_data_ptr()};
  check_launch(launch_gemm_swiglu(launch, stream_of(x)), "GEMM with SwiGLU");
  return true;
}

bool linear_swiglu_backward_on_cuda(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                                    const at::Tensor& gate_up, MinTiles tiles) {
  if (!is_result(dgate_up) || !is_result(y) || !is_result(gate_up) || !fits_tma(dout) || !fits_tma(w) || !has_kernel_for(dout) ||
      !is_worth_it(dout, w.size(1), tiles))
    return false;
  const CudaDeviceGuard device(dout.device());
  const GemmSwigluBackwardLaunch launch{.gemm = gemm_of(dout, w, /*fan_in_fan_out=*/true),
                                        .gate_up = gate_up.const_data_ptr(),
                                        .dgate_up = dgate_up.mutable_data_ptr(),
                                        .y = y.mutable_data_ptr()};
  check_launch(launch_gemm_swiglu_backward(launch, stream_of(dout)), "GEMM with SwiGLU's gradient");
  return true;
}

bool linear_rope_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RotatedHeads& rotated, MinTiles tiles) {
  if (!is_result(y) || !fits_tma(x) || !fits_tma(w) || !is_rotatable(y, rotated) || !has_kernel_for(x) || !is_worth_it(x, w.size(0), tiles))
    return false;
  return start_rope(gemm_of(x, w), y, rotated);
}

bool linear_rope_on_cuda(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const RotatedHeads& rotated, MinTiles tiles) {
  if (!is_result(y) || !fits_tma(x) || !fits_tma(w) || !is_rotatable(y, rotated) || !has_kernel_for(y) ||
      !is_worth_it(x.rows, w.rows.size(0), tiles))
    return false;
  return start_rope(gemm_of(x, w), y, rotated);
}

bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* amax,
                           MinTiles tiles) {
  if (!is_result(gate_up) || !is_result(y) || !fits_tma(x) || !fits_tma(w) || !has_kernel_for(y) ||
      !is_worth_it(x.rows, w.rows.size(0), tiles))
    return false;
  const CudaDeviceGuard device(y.device());
  const GemmSwigluLaunch launch{
      .gemm = gemm_of(x, w), .gate_up = gate_up.mutable_data_ptr(), .y = y.mutable_data_ptr(), .amax = amax_words(amax, y)};
  check_launch(launch_gemm_swiglu(launch, stream_of(y)), "fp8 GEMM with SwiGLU");
  return true;
}

}  // namespace cairn::kernels
