// Softmax cross entropy in plain ATen operations.
#include "kernels/cross_entropy.h"

#include "kernels/aten.h"

namespace cairn::kernels::reference {

void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets, int64_t ignore) {
  const at::Tensor ignored = targets == ignore, elsewhere = targets == kElsewhereTarget;
  const at::Tensor places = targets.masked_fill(ignored, 0).masked_fill(elsewhere, 0);
  const at::Tensor chosen = logits.gather(1, places.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0);
  const at::Tensor sums = at::logsumexp(logits, {1});
  lse.copy_(sums);
  loss.copy_((sums - chosen).masked_fill(ignored, 0));
}

void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore) {
  const at::Tensor ignored = targets == ignore, elsewhere = targets == kElsewhereTarget;
  const at::Tensor places = targets.masked_fill(ignored, 0).masked_fill(elsewhere, 0);
  const at::Tensor factor = scale.to(logits.scalar_type()).reshape({-1}).expand({logits.size(0)}).masked_fill(ignored, 0).unsqueeze(1);
  logits.copy_(at::exp(logits - lse.unsqueeze(1)) * factor);
  logits.scatter_add_(1, places.unsqueeze(1), -factor.masked_fill(elsewhere.unsqueeze(1), 0));
}

}  // namespace cairn::kernels::reference
