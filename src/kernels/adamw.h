// AdamW (Loshchilov and Hutter, arXiv:1711.05101) on one flat piece, and the sum of squares that clipping needs.
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
  const at::Tensor* gradient_factor = nullptr;  // and by this: one element on the piece's device (a clipping factor), borrowed
  // How a p in bf16 is rounded: by number i of these for its element i (stochastic_rounding.h), borrowed; null: to the nearest.
  const base::Random* rounding = nullptr;
  // What adamw_scalars_of() all pieces came to, on their device, borrowed: read when the update runs, in place of learning_rate, step,
  // weight_decay and the numbers that round (whether they do, `rounding` says), so that an update may be recorded once and repeated with
  // others. Null: none.
  const at::Tensor* scalars = nullptr;
};

// Updates p, m and v in place from g (only read), four flat contiguous tensors of one length. Any of them may be in bf16 (m and v alike):
// the update is made in fp32, and each result is rounded once.
void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step);

// One of several pieces, with what AdamwStep says of a single one.
struct AdamwPiece {
  at::Tensor p, m, v, g;
  double weight_decay = 0;
  const base::Random* rounding = nullptr;
};
// Many pieces by a rule, each as above; on a GPU dozens of them by one kernel, since a model has hundreds and most are small.
void adamw(std::span<const AdamwPiece> pieces, const AdamwStep& step);

// What pieces have in common, and with that those of one piece.
AdamwScalars adamw_scalars(const AdamwStep& step);
AdamwScalars adamw_scalars_of(const AdamwPiece& piece, const AdamwStep& step, AdamwScalars common);
// Those of several pieces in host memory, a row each: pinned, where the pieces are on a GPU.
at::Tensor adamw_scalars_of(std::span<const AdamwPiece> pieces, const AdamwStep& step);

// The sum of x^2 over a flat contiguous tensor, as a 0-dim double on its device. On the CPU the same bits for every thread count.
at::Tensor sum_of_squares(const at::Tensor& x);
// Over several of one type, at least one; on a GPU by a few kernels, however many they are.
at::Tensor sum_of_squares(std::span<const at::Tensor> all);

namespace reference {
void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step);
at::Tensor sum_of_squares(const at::Tensor& x);
}  // namespace reference

// True if this build has CUDA kernels.
bool has_cuda_kernels();

}  // namespace cairn::kernels
