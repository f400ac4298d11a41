// Softmax cross entropy over a vocabulary, row by row, and its gradient in the place of the logits.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

inline constexpr int64_t kIgnoreTarget = -100;  // a row with this target has loss 0 and gradient 0
inline constexpr int64_t kElsewhereTarget =
    -1;  // its target is in a part of the vocabulary that is not here: loss lse, no 1 in the gradient

// logits [rows, vocab], targets [rows] int64, loss and lse [rows], fp32 also where logits are bf16 or fp16.

// Overwrites loss (lse - logits[target], 0 where ignored) and lse (log of the sum of exp).
void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                   int64_t ignore = kIgnoreTarget);

// Overwrites logits with their gradient, (softmax - onehot) * scale. `scale` is on the logits' device, with one element for
// all rows or one per row [rows]: the gradient of the loss with respect to each row's loss.
void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore = kIgnoreTarget);

// Both in one pass over the rows, while each is still in cache: loss and lse as above, logits become their gradient.
void cross_entropy_and_gradient(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                                const at::Tensor& scale, int64_t ignore = kIgnoreTarget);

namespace reference {
void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                   int64_t ignore = kIgnoreTarget);
void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore = kIgnoreTarget);
}  // namespace reference

}  // namespace cairn::kernels
