// AdamW on a GPU: from tensors to pointers.
#include "kernels/adamw_cuda.h"

#include <cmath>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/check.h"
#include "kernels/adamw.h"
#include "kernels/adamw_kernel.h"
#include "kernels/aten.h"

namespace cairn::kernels {
namespace {

bool fits(const at::Tensor& x) { return x.is_cuda() && x.scalar_type() == at::kFloat && x.is_contiguous(); }

}  // namespace

bool has_cuda_kernels() { return true; }

bool adamw_on_cuda(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step) {
  if (!fits(p) || !fits(m) || !fits(v) || !fits(g)) return false;
  const c10::cuda::CUDAGuard device(p.device());
  at::Tensor factor;
  if (step.gradient_factor != nullptr) factor = step.gradient_factor->to(at::kFloat);
  AdamwLaunch launch{};
  launch.p = p.mutable_data_ptr<float>(), launch.m = m.mutable_data_ptr<float>(), launch.v = v.mutable_data_ptr<float>();
  launch.g = g.const_data_ptr<float>();
  launch.gradient_factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr;
  launch.count = p.numel();
  launch.gradient_scale = static_cast<float>(step.gradient_scale);
  launch.beta1 = static_cast<float>(step.beta1), launch.beta2 = static_cast<float>(step.beta2), launch.eps = static_cast<float>(step.eps);
  launch.decay = static_cast<float>(1 - step.learning_rate * step.weight_decay);
  launch.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, static_cast<double>(step.step))));
  launch.inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, static_cast<double>(step.step))));
  const cudaError_t status = launch_adamw(launch, c10::cuda::getCurrentCUDAStream(p.device().index()));
  CAIRN_CHECK(status == cudaSuccess, "the AdamW kernel did not start: {}", cudaGetErrorString(status));
  return true;
}

}  // namespace cairn::kernels
