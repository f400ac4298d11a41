// AdamW on the CPU: one pass over the four arrays; and the sum of squares in fixed chunks.
#include "kernels/adamw.h"

#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor.h"
#include "kernels/low_precision.h"
#include "kernels/optimizer/adamw_cuda.h"
#include "kernels/stochastic_rounding.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kCopied = 1 << 20;  // elements
constexpr int64_t kChunk = 16384;     // elements to a task; fixed, so that sums do not depend on the threads

struct PieceArrays {
  float *p, *m, *v;
  const float* g;
  float scale, beta1, beta2, eps, decay, step_size, inverse_root2;
};

struct Update {
  template <int W>
  static CAIRN_INLINE void run(const PieceArrays* piece, int64_t begin, int64_t end) {
    const PieceArrays a = *piece;
    const float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2;
#pragma omp simd simdlen(W)
    for (int64_t i = begin; i < end; ++i) {
      const float g = a.g[i] * a.scale;
      const float m = a.beta1 * a.m[i] + rest1 * g;
      const float v = a.beta2 * a.v[i] + rest2 * g * g;
      a.m[i] = m;
      a.v[i] = v;
      a.p[i] = a.p[i] * a.decay - a.step_size * m / (std::sqrt(v) * a.inverse_root2 + a.eps);
    }
  }
};

struct Squares {
  template <int W>
  static CAIRN_INLINE void run(double* total, const float* x, int64_t n) {
    constexpr int kLanes = 16;  // the same on every machine
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
    for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
    *total = std::accumulate(lanes, lanes + kLanes, 0.0);
  }
};

constexpr size_t kScalarsRow = sizeof(AdamwScalars) / sizeof(int64_t);
static_assert(sizeof(AdamwScalars) == kScalarsRow * sizeof(int64_t));

void check_scalars(std::span<const AdamwPiece> pieces, const at::Tensor& scalars) {
  CAIRN_CHECK(scalars.scalar_type() == at::kLong && scalars.is_contiguous() &&
                  scalars.numel() == std::ssize(pieces) * static_cast<int64_t>(kScalarsRow),
              "scalars of {} elements for {} pieces", scalars.numel(), pieces.size());
  for (const AdamwPiece& one : pieces)
    CAIRN_CHECK(one.p.device() == scalars.device(), "scalars on {} for a piece on {}", scalars.device().str(), one.p.device().str());
}

void adamw_without_cuda(const AdamwPiece& one, const AdamwStep& step, const AdamwScalars& scalars);

// The update in fp32 of pieces that are partly in half precision.
void widened_adamw(const AdamwPiece& one, const AdamwStep& step, const AdamwScalars& scalars) {
  const at::Tensor kept[] = {one.p, one.m, one.v}, wide[] = {widened(one.p), widened(one.m), widened(one.v)};
  adamw_without_cuda({wide[0], wide[1], wide[2], widened(one.g), one.weight_decay}, step, scalars);
  const bool randomly = one.rounding != nullptr && is_half_precision(one.p);
  if (randomly) {
    base::Random random(scalars.key);
    random.stream = scalars.stream;
    round_stochastically(one.p, wide[0], random, one.first_index);
  }
  for (size_t i = randomly ? 1 : 0; i < std::size(kept); ++i)
    if (!wide[i].is_same(kept[i])) kept[i].copy_(wide[i]);
}

void adamw_without_cuda(const AdamwPiece& one, const AdamwStep& step, const AdamwScalars& scalars) {
  const auto& [p, m, v, g, weight_decay, rounding, first_index] = one;
  if (is_half_precision(p) || is_half_precision(m) || is_half_precision(v) || is_half_precision(g))
    return widened_adamw(one, step, scalars);
  if (!all_cpu_float(p, m, v, g)) {
    CAIRN_CHECK(step.scalars == nullptr, "no kernel reads the scalars of this piece from {}: its update cannot be captured in a CUDA graph",
                p.device().str());
    AdamwStep of_one = step;
    of_one.weight_decay = weight_decay;
    return reference::adamw(p, m, v, g, of_one);
  }
  PieceArrays piece{};
  piece.p = p.mutable_data_ptr<float>(), piece.m = m.mutable_data_ptr<float>(), piece.v = v.mutable_data_ptr<float>();
  piece.g = g.const_data_ptr<float>();
  piece.scale = static_cast<float>(step.gradient_scale * (step.gradient_factor != nullptr ? step.gradient_factor->item<double>() : 1.0));
  piece.beta1 = static_cast<float>(step.beta1), piece.beta2 = static_cast<float>(step.beta2), piece.eps = static_cast<float>(step.eps);
  piece.decay = scalars.decay, piece.step_size = scalars.step_size, piece.inverse_root2 = scalars.inverse_root2;
  parallel_rows(p.numel(), kChunk, [&piece](int64_t begin, int64_t end) { simd::run<Update>(&piece, begin, end); });
}

}  // namespace

void adamw(std::span<const AdamwPiece> pieces, const AdamwStep& step) {
  CAIRN_CHECK(step.step >= 1, "AdamW at step {}: steps count from 1", step.step);
  for (const AdamwPiece& one : pieces) {
    CAIRN_CHECK(one.p.numel() == one.m.numel() && one.p.numel() == one.v.numel() && one.p.numel() == one.g.numel(),
                "AdamW on pieces of {}, {}, {} and {} elements", one.p.numel(), one.m.numel(), one.v.numel(), one.g.numel());
    CAIRN_CHECK(one.rounding == nullptr || one.p.scalar_type() == at::kBFloat16, "stochastic rounding into {}",
                c10::toString(one.p.scalar_type()));
  }
  if (step.scalars != nullptr) check_scalars(pieces, *step.scalars);
  if (adamw_on_cuda(pieces, step)) return;
  const AdamwScalars common = adamw_scalars(step);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool given = step.scalars != nullptr && step.scalars->is_cpu();
    adamw_without_cuda(
        pieces[i], step,
        given ? static_cast<const AdamwScalars*>(step.scalars->const_data_ptr())[i] : adamw_scalars_of(pieces[i], step, common));
  }
}

AdamwScalars adamw_scalars(const AdamwStep& step) {
  return {.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, static_cast<double>(step.step)))),
          .inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, static_cast<double>(step.step))))};
}

AdamwScalars adamw_scalars_of(const AdamwPiece& piece, const AdamwStep& step, AdamwScalars common) {
  if (piece.rounding != nullptr) common.key = piece.rounding->key, common.stream = piece.rounding->stream;
  common.decay = static_cast<float>(1 - step.learning_rate * piece.weight_decay);
  return common;
}

at::Tensor adamw_scalars_of(std::span<const AdamwPiece> pieces, const AdamwStep& step) {
  const bool pinned = !pieces.empty() && pieces[0].p.is_cuda();
  const at::Tensor rows =
      at::empty({std::ssize(pieces), static_cast<int64_t>(kScalarsRow)}, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned));
  const AdamwScalars common = adamw_scalars(step);
  for (size_t i = 0; i < pieces.size(); ++i)
    static_cast<AdamwScalars*>(rows.mutable_data_ptr())[i] = adamw_scalars_of(pieces[i], step, common);
  return rows;
}

void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step) {
  const AdamwPiece one{p, m, v, g, step.weight_decay, step.rounding};
  adamw({&one, 1}, step);
}

at::Tensor sum_of_squares(std::span<const at::Tensor> all) {
  CAIRN_CHECK(!all.empty(), "squares of nothing");
  if (all.size() > 1 && all[0].is_cuda() && all[0].scalar_type() != at::kDouble) {
    const std::vector<at::Tensor> norms = at::_foreach_norm(at::TensorList(all.data(), all.size()), 2, at::kFloat);
    return at::stack(norms).to(at::kDouble).square_().sum();
  }
  at::Tensor sum = sum_of_squares(all[0]);
  for (const at::Tensor& one : all.subspan(1)) sum = sum + sum_of_squares(one);
  return sum;
}

at::Tensor sum_of_squares(const at::Tensor& x) {
  // In fp32 on a GPU, whose sums are trees. A copy in double would take more memory than the optimizer.
  if (x.is_cuda() && x.scalar_type() != at::kDouble)
    return at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, at::kFloat).to(at::kDouble).square_();
  if (!all_cpu_float(x)) {  // copies in double, a little at a time
    const at::Tensor flat = x.reshape({-1});
    at::Tensor sum = at::zeros({}, x.options().dtype(at::kDouble));
    for (int64_t done = 0; done < flat.numel(); done += kCopied)
      sum += reference::sum_of_squares(flat.narrow(0, done, std::min(kCopied, flat.numel() - done)));
    return sum;
  }
  std::vector<double> parts(static_cast<size_t>((x.numel() + kChunk - 1) / kChunk));
  const float* from = x.const_data_ptr<float>();
  parallel_rows(x.numel(), kChunk, [&parts, from](int64_t begin, int64_t end) {
    simd::run<Squares>(&parts[static_cast<size_t>(begin / kChunk)], from + begin, end - begin);
  });
  return at::scalar_tensor(std::accumulate(parts.begin(), parts.end(), 0.0), at::kDouble);
}

}  // namespace cairn::kernels
