// Products that go on working on their results: from tensors to pointers.
#include "kernels/fused_product_cuda.h"

#include <ATen/cuda/CUDAContext.h>

#include "kernels/aten.h"
#include "kernels/cuda_tensor.h"
#include "kernels/fused_product.h"
#include "kernels/fused_product_kernel.h"

namespace cairn::kernels {
namespace {

// As copies of boxes ask for it: rows begin at multiples of sixteen bytes.
bool is_in_boxes(const at::Tensor& x) {
  constexpr int64_t kTogether = 8, kMost = int64_t{1} << 31;
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && x.stride(1) == 1 &&
         x.stride(0) >= x.size(1) && x.size(1) % kTogether == 0 && x.stride(0) % kTogether == 0 && x.size(0) < kMost && x.size(1) < kMost &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
// Results are written as one piece.
bool is_result(const at::Tensor& x) { return is_in_boxes(x) && x.is_contiguous(); }

bool is_taken(const at::Tensor& x) { return has_hopper_products() && is_hopper(x.device()); }

bool is_worth_it(const at::Tensor& x, int64_t columns, Fewest tiles) {
  return tiles == Fewest::any || product_tiles_down(x.size(0)) * product_tiles_across(columns) >=
                                     at::cuda::getDeviceProperties(x.device().index())->multiProcessorCount;
}

ProductLaunch product_of(const at::Tensor& x, const at::Tensor& w, bool by_input = false) {
  return {.x = x.const_data_ptr(),
          .w = w.const_data_ptr(),
          .x_stride = x.stride(0),
          .w_stride = w.stride(0),
          .rows = x.size(0),
          .in = x.size(1),
          .out = w.size(by_input ? 1 : 0),
          .by_input = by_input};
}

// Codes of values, by rows.
bool is_in_boxes(const Fp8Matrix& x) {
  constexpr int64_t kTogether = 16;
  return x.rows.defined() && x.rows.is_cuda() && x.rows.scalar_type() == at::kFloat8_e4m3fn && x.rows.dim() == 2 && x.rows.size(0) > 0 &&
         x.rows.size(1) > 0 && x.rows.is_contiguous() && x.rows.size(1) % kTogether == 0 &&
         reinterpret_cast<uintptr_t>(x.rows.const_data_ptr()) % 16 == 0;
}

ProductLaunch product_of(const Fp8Matrix& x, const Fp8Matrix& w) {
  ProductLaunch product = product_of(x.rows, w.rows);
  product.x_factor = x.factor.const_data_ptr<float>(), product.w_factor = w.factor.const_data_ptr<float>();
  return product;
}

bool is_turned(const at::Tensor& y, const Turned& turned) {
  const int64_t half = turned.table.cos.size(1);
  return (half == 32 || half == 64) && y.size(1) % (2 * half) == 0 && all_sums(y, turned.table.cos, turned.table.sin);
}

bool start_rope(const ProductLaunch& product, const at::Tensor& y, const Turned& turned) {
  const OnDeviceOf device(y.device());
  const int64_t half = turned.table.cos.size(1);
  const ProductRopeLaunch launch{.product = product,
                                 .y = y.mutable_data_ptr(),
                                 .cos = turned.table.cos.const_data_ptr<float>() + turned.position * half,
                                 .sin = turned.table.sin.const_data_ptr<float>() + turned.position * half,
                                 .length = turned.length,
                                 .head_dim = 2 * half,
                                 .turned = turned.heads * 2 * half};
  check_started(launch_product_rope(launch, stream_of(y)), "product with rotary embedding");
  return true;
}

}  // namespace

bool is_hopper(const at::Device& device) { return device.is_cuda() && at::cuda::getDeviceProperties(device.index())->major == 9; }

bool has_hopper_products() {
#if defined(CAIRN_HOPPER)
  return true;
#else
  return false;
#endif
}

bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, Fewest tiles) {
  if (!is_result(gate_up) || !is_result(y) || !is_in_boxes(x) || !is_in_boxes(w) || !is_taken(x) || !is_worth_it(x, w.size(0), tiles))
    return false;
  const OnDeviceOf device(x.device());
  const ProductSwigluLaunch launch{.product = product_of(x, w), .gate_up = gate_up.mutable_data_ptr(), .y = y.mutable_data_ptr()};
  check_started(launch_product_swiglu(launch, stream_of(x)), "product with SwiGLU");
  return true;
}

bool linear_input_swiglu_on_cuda(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                                 const at::Tensor& gate_up, Fewest tiles) {
  if (!is_result(dgate_up) || !is_result(y) || !is_result(gate_up) || !is_in_boxes(dout) || !is_in_boxes(w) || !is_taken(dout) ||
      !is_worth_it(dout, w.size(1), tiles))
    return false;
  const OnDeviceOf device(dout.device());
  const ProductSwigluBackwardLaunch launch{.product = product_of(dout, w, /*by_input=*/true),
                                           .gate_up = gate_up.const_data_ptr(),
                                           .dgate_up = dgate_up.mutable_data_ptr(),
                                           .y = y.mutable_data_ptr()};
  check_started(launch_product_swiglu_backward(launch, stream_of(dout)), "product with SwiGLU's gradient");
  return true;
}

bool linear_rope_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const Turned& turned, Fewest tiles) {
  if (!is_result(y) || !is_in_boxes(x) || !is_in_boxes(w) || !is_turned(y, turned) || !is_taken(x) || !is_worth_it(x, w.size(0), tiles))
    return false;
  return start_rope(product_of(x, w), y, turned);
}

bool linear_rope_on_cuda(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const Turned& turned, Fewest tiles) {
  if (!is_result(y) || !is_in_boxes(x) || !is_in_boxes(w) || !is_turned(y, turned) || !is_taken(y) ||
      !is_worth_it(x.rows, w.rows.size(0), tiles))
    return false;
  return start_rope(product_of(x, w), y, turned);
}

bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* largest,
                           Fewest tiles) {
  if (!is_result(gate_up) || !is_result(y) || !is_in_boxes(x) || !is_in_boxes(w) || !is_taken(y) ||
      !is_worth_it(x.rows, w.rows.size(0), tiles))
    return false;
  const OnDeviceOf device(y.device());
  const ProductSwigluLaunch launch{
      .product = product_of(x, w), .gate_up = gate_up.mutable_data_ptr(), .y = y.mutable_data_ptr(), .largest = words_for(largest, y)};
  check_started(launch_product_swiglu(launch, stream_of(y)), "product of codes with SwiGLU");
  return true;
}

}  // namespace cairn::kernels
