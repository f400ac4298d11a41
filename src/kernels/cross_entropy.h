// Softmax cross entropy over a vocabulary, row by row. The gradient overwrites the logits.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// A row with this target has loss 0 and gradient 0.
inline constexpr int64_t kIgnoreTarget = -100;
// Vocabulary parallelism: the target is in another rank's part of the vocabulary. The loss is lse, and the gradient has no one-hot term.
inline constexpr int64_t kElsewhereTarget = -1;

// Shapes: logits [rows, vocab]; targets [rows] int64; loss and lse [rows], fp32 even where logits are bf16 or fp16.

// Overwrites lse (log-sum-exp of the row) and loss (lse - logits[target]; 0 where ignored).
void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                   int64_t ignore = kIgnoreTarget);

// Overwrites logits with their gradient, (softmax - onehot) * scale. `scale`, on the logits' device, has one element for all rows or one
// per row: the gradient of the final loss with respect to the row's loss.
void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore = kIgnoreTarget);

// Both in one pass over the rows: overwrites loss and lse as above, and logits with their gradient.
void cross_entropy_and_gradient(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                                const at::Tensor& scale, int64_t ignore = kIgnoreTarget);

namespace reference {
void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                   int64_t ignore = kIgnoreTarget);
void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore = kIgnoreTarget);
}  // namespace reference

}  // namespace cairn::kernels
