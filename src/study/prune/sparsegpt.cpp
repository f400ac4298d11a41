// SparseGPT (arXiv:2301.00774). Let U be the upper Cholesky factor of the inverse of the damped Hessian. Column c is pruned in turn:
//
//   score = w_c^2 / U_cc^2        e = (w_c - pruned w_c) / U_cc        w_j -= e U_cj  for all j > c
//
// Columns are taken in blocks, whose masks are chosen together. Columns behind a block are updated once, with all of its errors. Inputs
// that are always 0 have no weights.
#include <algorithm>
#include <cmath>

#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_cholesky_ex.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "study/prune/criteria.h"

namespace cairn::study {
namespace {

constexpr int64_t kColumnsAtOnce = 128;
constexpr double kDamping = 0.01;
constexpr int kDampings = 6;  // tries, each with ten times more

// The upper Cholesky factor of the inverse of H.
at::Tensor inverse_factor(at::Tensor hessian) {
  const at::Tensor diagonal = hessian.diagonal();
  const double mean = diagonal.mean().item<double>();
  double damping = kDamping * mean;
  for (int i = 0; i < kDampings; ++i, damping *= 10) {
    diagonal.add_(damping);
    const auto [lower, trouble] = at::linalg_cholesky_ex(hessian);
    if (trouble.item<int>() != 0) continue;
    const auto [upper, again] = at::linalg_cholesky_ex(at::cholesky_inverse(lower), /*upper=*/true);
    if (again.item<int>() == 0) return upper;
  }
  base::fail_input("prune.method = sparsegpt: the inputs of a layer are not finite, or have no spread. Use more calibration samples.");
}

}  // namespace

at::Tensor prune_sparsegpt(const at::Tensor& weight, const at::Tensor& hessian, const PruneRule& rule, const at::Tensor& kept_before) {
  const int64_t rows = weight.size(0), columns = weight.size(1), m = rule.pattern.m;
  CAIRN_CHECK(m == 0 || columns % m == 0, "{} inputs in groups of {}", columns, m);
  at::Tensor h = hessian.to(at::kFloat).clone();
  const at::Tensor dead = h.diagonal().eq(0);
  h.diagonal().masked_fill_(dead, 1);
  weight.masked_fill_(dead, 0);
  if (kept_before.defined()) weight.masked_fill_(kept_before.logical_not(), 0);
  const at::Tensor factor = inverse_factor(std::move(h));
  at::Tensor kept = at::ones({rows, columns}, weight.options().dtype(at::kBool));
  const int64_t width = m > 0 ? std::max(m, kColumnsAtOnce / m * m) : kColumnsAtOnce;
  for (int64_t begin = 0; begin < columns; begin += width) {
    const int64_t count = std::min(width, columns - begin), end = begin + count;
    const at::Tensor w = weight.narrow(1, begin, count), u = factor.narrow(0, begin, count).narrow(1, begin, count);
    const at::Tensor scale = u.diagonal(), block = kept.narrow(1, begin, count), errors = at::empty({rows, count}, weight.options());
    const auto before = [&](int64_t first, int64_t n) {
      return kept_before.defined() ? kept_before.narrow(1, begin + first, n) : at::Tensor();
    };
    const auto choose = [&](int64_t first, int64_t n, const PruneRule& among) {
      const at::Tensor scores = (w.narrow(1, first, n) / scale.narrow(0, first, n)).square().contiguous();
      block.narrow(1, first, n).copy_(keep_highest(scores, among, before(first, n)));
    };
    // So many of this block that after it exactly the floor of the layer's share is gone.
    const auto gone_at = [&](int64_t at) { return std::floor(rule.sparsity * static_cast<double>(rows * at) + 1e-9); };
    if (m == 0) choose(0, count, {.sparsity = (gone_at(end) - gone_at(begin) + 0.5) / static_cast<double>(rows * count)});
    for (int64_t c = 0; c < count; ++c) {
      if (m > 0 && c % m == 0) choose(c, m, rule);
      const at::Tensor column = w.select(1, c), left = column.masked_fill(block.select(1, c).logical_not(), 0);
      const at::Tensor error = (column - left) / scale[c];
      column.copy_(left);
      if (c + 1 < count) w.narrow(1, c + 1, count - c - 1).sub_(at::outer(error, u[c].narrow(0, c + 1, count - c - 1)));
      errors.select(1, c).copy_(error);
    }
    if (end < columns)
      weight.narrow(1, end, columns - end).sub_(at::mm(errors, factor.narrow(0, begin, count).narrow(1, end, columns - end)));
  }
  weight.masked_fill_(kept.logical_not(), 0);
  return kept;
}

}  // namespace cairn::study
