// Softmax cross entropy on a GPU: from tensors to pointers.
#include "kernels/layers/cross_entropy_cuda.h"

#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/tensor.h"
#include "kernels/layers/cross_entropy_kernel.h"

namespace cairn::kernels {
namespace {

bool fits(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets) {
  return all_kernel_inputs(logits) && all_fp32(logits, lse) && targets.device() == logits.device() && targets.scalar_type() == at::kLong &&
         targets.is_contiguous() && logits.size(1) > 0;
}

CrossEntropyLaunch launch_of(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, int64_t ignore) {
  return {.elements = elements_of(logits),
          .loss = nullptr,
          .lse = lse.mutable_data_ptr<float>(),
          .logits = logits.mutable_data_ptr(),
          .targets = targets.const_data_ptr<int64_t>(),
          .scale = nullptr,
          .scale_stride = 0,
          .rows = logits.size(0),
          .vocab = logits.size(1),
          .ignore = ignore,
          .elsewhere = kElsewhereTarget};
}

}  // namespace

bool cross_entropy_on_cuda(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                           int64_t ignore) {
  if (!fits(logits, lse, targets) || !all_fp32(logits, loss)) return false;
  const CudaDeviceGuard device(logits.device());
  CrossEntropyLaunch launch = launch_of(logits, lse, targets, ignore);
  launch.loss = loss.mutable_data_ptr<float>();
  check_launch(launch_cross_entropy(launch, stream_of(logits)), "cross entropy");
  return true;
}

bool cross_entropy_backward_on_cuda(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                                    int64_t ignore) {
  if (!fits(logits, lse, targets) || scale.device() != logits.device()) return false;
  const CudaDeviceGuard device(logits.device());
  const at::Tensor factors = scale.to(at::kFloat).contiguous();
  CrossEntropyLaunch launch = launch_of(logits, lse, targets, ignore);
  launch.scale = factors.const_data_ptr<float>(), launch.scale_stride = scale.numel() == 1 ? 0 : 1;
  check_launch(launch_cross_entropy_backward(launch, stream_of(logits)), "cross entropy gradient");
  return true;
}

bool cross_entropy_and_gradient_on_cuda(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                                        const at::Tensor& scale, int64_t ignore) {
  if (!fits(logits, lse, targets) || !all_fp32(logits, loss) || scale.device() != logits.device()) return false;
  const CudaDeviceGuard device(logits.device());
  const at::Tensor factors = scale.to(at::kFloat).contiguous();
  CrossEntropyLaunch launch = launch_of(logits, lse, targets, ignore);
  launch.loss = loss.mutable_data_ptr<float>();
  launch.scale = factors.const_data_ptr<float>(), launch.scale_stride = scale.numel() == 1 ? 0 : 1;
  check_launch(launch_cross_entropy_and_gradient(launch, stream_of(logits)), "cross entropy with gradient");
  return true;
}

}  // namespace cairn::kernels
