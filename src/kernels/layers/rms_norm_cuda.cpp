// RMSNorm on a GPU: from tensors to pointers.
#include "kernels/layers/rms_norm_cuda.h"

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/layers/rms_norm_kernel.h"

namespace cairn::kernels {

bool rms_norm_on_cuda(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor* sum, const at::Tensor& x, const at::Tensor* r,
                      const at::Tensor& weight, double eps, at::Tensor* amax) {
  if (!all_kernel_inputs(x, y, weight) || !all_fp32(x, rstd) || (r != nullptr && !all_kernel_inputs(x, *r, *sum))) return false;
  const CudaDeviceGuard device(x.device());
  const NormLaunch launch{.elements = elements_of(x),
                          .y = y.mutable_data_ptr(),
                          .sum = r != nullptr ? sum->mutable_data_ptr() : nullptr,
                          .rstd = rstd.mutable_data_ptr<float>(),
                          .x = x.const_data_ptr(),
                          .r = r != nullptr ? r->const_data_ptr() : nullptr,
                          .weight = weight.const_data_ptr(),
                          .rows = rstd.numel(),
                          .embed = weight.numel(),
                          .eps = static_cast<float>(eps),
                          .amax = amax_words(amax, x)};
  check_launch(launch_norm(launch, stream_of(x)), "RMSNorm");
  return true;
}

bool rms_norm_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& rstd, const at::Tensor* add, at::Tensor* amax) {
  if (!all_kernel_inputs(x, dx, dy, weight) || !all_fp32(x, rstd) || (add != nullptr && !all_kernel_inputs(x, *add))) return false;
  const CudaDeviceGuard device(x.device());
  const NormInputLaunch launch{.elements = elements_of(x),
                               .dx = dx.mutable_data_ptr(),
                               .dy = dy.const_data_ptr(),
                               .x = x.const_data_ptr(),
                               .weight = weight.const_data_ptr(),
                               .add = add != nullptr ? add->const_data_ptr() : nullptr,
                               .rstd = rstd.const_data_ptr<float>(),
                               .rows = rstd.numel(),
                               .embed = weight.numel(),
                               .amax = amax_words(amax, x)};
  check_launch(launch_norm_input(launch, stream_of(x)), "RMSNorm gradient");
  return true;
}

bool has_fused_backward_on_cuda(const at::Tensor& x) {
  return all_kernel_inputs(x) && x.numel() > 0 && x.dim() > 0 && norm_backward_supports(elements_of(x), x.size(-1));
}

bool rms_norm_backward_on_cuda(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& rstd, const at::Tensor* add) {
  const auto aligned = [](const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; };
  if (!has_fused_backward_on_cuda(x) || !all_kernel_inputs(x, into.dx, dy, weight) || !all_fp32(x, rstd, into.dw) ||
      (add != nullptr && !(all_kernel_inputs(x, *add) && aligned(*add))) ||
      (into.y != nullptr && !(all_kernel_inputs(x, *into.y) && aligned(*into.y))) || !aligned(into.dx) || !aligned(dy) || !aligned(x) ||
      !aligned(weight))
    return false;
  const CudaDeviceGuard device(x.device());
  const int64_t rows = rstd.numel(), embed = weight.numel();
  const at::Tensor parts = at::empty({norm_backward_parts(elements_of(x), rows, embed), embed}, into.dw.options());
  const NormBackwardLaunch launch{.elements = elements_of(x),
                                  .dx = into.dx.mutable_data_ptr(),
                                  .y = into.y != nullptr ? into.y->mutable_data_ptr() : nullptr,
                                  .dw = into.dw.mutable_data_ptr<float>(),
                                  .parts = parts.mutable_data_ptr<float>(),
                                  .dy = dy.const_data_ptr(),
                                  .x = x.const_data_ptr(),
                                  .weight = weight.const_data_ptr(),
                                  .add = add != nullptr ? add->const_data_ptr() : nullptr,
                                  .rstd = rstd.const_data_ptr<float>(),
                                  .rows = rows,
                                  .embed = embed,
                                  .amax = amax_words(into.amax, x)};
  check_launch(launch_norm_backward(launch, stream_of(x)), "RMSNorm gradients");
  return true;
}

bool rms_norm_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                      bool accumulate) {
  if (!all_kernel_inputs(x, dy) || !all_fp32(x, dw, rstd) || x.numel() == 0) return false;
  const CudaDeviceGuard device(x.device());
  const int64_t rows = rstd.numel(), embed = dw.numel();
  const at::Tensor parts = at::empty({norm_weight_parts(rows, embed), embed}, dw.options());
  const NormWeightLaunch launch{.elements = elements_of(x),
                                .dw = dw.mutable_data_ptr<float>(),
                                .parts = parts.mutable_data_ptr<float>(),
                                .dy = dy.const_data_ptr(),
                                .x = x.const_data_ptr(),
                                .rstd = rstd.const_data_ptr<float>(),
                                .rows = rows,
                                .embed = embed,
                                .accumulate = accumulate};
  check_launch(launch_norm_weight(launch, stream_of(x)), "RMSNorm weight gradient");
  return true;
}

}  // namespace cairn::kernels
