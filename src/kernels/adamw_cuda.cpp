// AdamW on a GPU: from tensors to pointers.
#include "kernels/adamw_cuda.h"

#include <cmath>

#include "base/random.h"
#include "kernels/adamw.h"
#include "kernels/adamw_kernel.h"
#include "kernels/aten.h"
#include "kernels/cuda_tensor.h"

namespace cairn::kernels {

bool has_cuda_kernels() { return true; }

bool adamw_on_cuda(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step) {
  if (!all_of_kernels(p) || !all_of_kernels(m, v) || !all_of_kernels(g) || m.device() != p.device() || g.device() != p.device())
    return false;
  const OnDeviceOf device(p.device());
  at::Tensor factor;
  if (step.gradient_factor != nullptr) factor = step.gradient_factor->to(at::kFloat);
  const AdamwLaunch launch{.parameters = elements_of(p),
                           .gradients = elements_of(g),
                           .moments = elements_of(m),
                           .p = p.mutable_data_ptr(),
                           .m = m.mutable_data_ptr(),
                           .v = v.mutable_data_ptr(),
                           .g = g.const_data_ptr(),
                           .gradient_factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr,
                           .count = p.numel(),
                           .gradient_scale = static_cast<float>(step.gradient_scale),
                           .beta1 = static_cast<float>(step.beta1),
                           .beta2 = static_cast<float>(step.beta2),
                           .eps = static_cast<float>(step.eps),
                           .decay = static_cast<float>(1 - step.learning_rate * step.weight_decay),
                           .step_size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, static_cast<double>(step.step)))),
                           .inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, static_cast<double>(step.step)))),
                           .rounds_randomly = step.rounding != nullptr,
                           .key = step.rounding != nullptr ? step.rounding->key : 0,
                           .stream = step.rounding != nullptr ? step.rounding->stream : 0};
  check_started(launch_adamw(launch, stream_of(p)), "AdamW");
  return true;
}

}  // namespace cairn::kernels
