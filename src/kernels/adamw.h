// AdamW (Loshchilov and Hutter, arXiv:1711.05101) on flat pieces of parameters, and the sum of squares that gradient clipping needs.
//
//   g <- g * gradient_scale * *gradient_factor
//   m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
//   p <- p (1 - learning_rate weight_decay) - learning_rate m^ / (sqrt(v^) + eps),   m^ = m / (1 - beta1^step),  v^ = v / (1 - beta2^step)
#pragma once
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "kernels/adamw_scalars.h"

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

struct AdamwStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;                      // p -= learning_rate * weight_decay * p, before the update
  int64_t step = 1;                             // counts from 1; for the bias corrections
  double gradient_scale = 1;                    // g is multiplied by this
  const at::Tensor* gradient_factor = nullptr;  // and by this: one element on the piece's device (a clipping factor). Borrowed.
  // Stochastic rounding of a p in bf16: element i uses random number i (stochastic_rounding.h). Borrowed; null: round to nearest.
  const base::Random* rounding = nullptr;
  // The result of adamw_scalars_of() for all pieces, on their device. Borrowed; null: none. The kernel reads it when it runs, in place of
  // learning_rate, step, weight_decay and the random key (`rounding` still says whether to round). So a CUDA graph can replay the update
  // with other scalars.
  const at::Tensor* scalars = nullptr;
};

// Updates p, m and v in place; reads g. All four are flat, contiguous and of one length. Each may be bf16 (m and v have the same dtype):
// the update is computed in fp32, and each result is rounded once.
void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step);

// One of several pieces. weight_decay and rounding take the place of those in AdamwStep. Element i is rounded by random number
// first_index + i, so that a slice of a parameter is rounded as in the whole.
struct AdamwPiece {
  at::Tensor p, m, v, g;
  double weight_decay = 0;
  const base::Random* rounding = nullptr;
  int64_t first_index = 0;
};
// Updates many pieces, each as above. On a GPU one kernel takes dozens of pieces: a model has hundreds, and most are small.
void adamw(std::span<const AdamwPiece> pieces, const AdamwStep& step);

// The scalars that all pieces share, and with these the scalars of one piece.
AdamwScalars adamw_scalars(const AdamwStep& step);
AdamwScalars adamw_scalars_of(const AdamwPiece& piece, const AdamwStep& step, AdamwScalars common);
// The scalars of several pieces in host memory, one row each; in pinned memory where the pieces are on a GPU.
at::Tensor adamw_scalars_of(std::span<const AdamwPiece> pieces, const AdamwStep& step);

// The sum of x^2 over a flat contiguous tensor, as a 0-dim double on its device. On the CPU it does not depend on the thread count.
at::Tensor sum_of_squares(const at::Tensor& x);
// The sum over one or more tensors of one dtype; on a GPU with a fixed, small number of kernels.
at::Tensor sum_of_squares(std::span<const at::Tensor> all);

namespace reference {
void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step);
at::Tensor sum_of_squares(const at::Tensor& x);
}  // namespace reference

// True if this build has CUDA kernels.
bool has_cuda_kernels();

}  // namespace cairn::kernels
