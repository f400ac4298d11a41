// Softmax cross entropy on the CPU: a row stays in cache from its maximum to its gradient, and each exponential is computed once.
#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor.h"
#include "kernels/layers/cross_entropy_cuda.h"
#include "kernels/low_precision.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr int64_t kGrainFloats = 65536;

struct Rows {
  float *loss, *lse;
  float* logits;
  const int64_t* targets;
  const float* scale;    // one per row, or one for all
  int64_t scale_stride;  // 1 or 0
  int64_t vocab, ignore;
};

template <int W>
CAIRN_INLINE float row_maximum(const float* x, int64_t n) {
  Float<W> high[4] = {splat<W>(-std::numeric_limits<float>::infinity()), high[0], high[0], high[0]};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) high[u] = maximum<W>(high[u], load<W>(x + i + u * W));
  float result = maximum_lane<W>(maximum<W>(maximum<W>(high[0], high[1]), maximum<W>(high[2], high[3])));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// The sum of exp(x - base). With `keep`, x becomes the exponentials.
template <int W, bool keep>
CAIRN_INLINE float row_exponentials(float* x, int64_t n, float base) {
  Float<W> sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W)
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      const Float<W> e = simd::exp<W>(load<W>(x + i + u * W) - base);
      if (keep) store<W>(x + i + u * W, e);
      sums[u] += e;
    }
  float total = sum<W>(sums[0] + sums[1]);
  for (; i < n; ++i) {
    const float e = std::exp(x[i] - base);
    if (keep) x[i] = e;
    total += e;
  }
  return total;
}

template <int W>
CAIRN_INLINE void row_scale(float* x, int64_t n, float factor) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store<W>(x + i, load<W>(x + i) * factor);
  for (; i < n; ++i) x[i] *= factor;
}

struct Loss {
  template <int W>
  static CAIRN_INLINE void run(const Rows* r, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = r->logits + row * r->vocab;
      const float high = row_maximum<W>(x, r->vocab);
      r->lse[row] = high + std::log(row_exponentials<W, false>(x, r->vocab, high));
      const int64_t target = r->targets[row];
      r->loss[row] = target == r->ignore ? 0 : target == kElsewhereTarget ? r->lse[row] : r->lse[row] - x[target];
    }
  }
};

struct LossAndGradient {
  template <int W>
  static CAIRN_INLINE void run(const Rows* r, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = r->logits + row * r->vocab;
      const int64_t target = r->targets[row];
      const float high = row_maximum<W>(x, r->vocab), chosen = target < 0 ? 0 : x[target];
      const float total = row_exponentials<W, true>(x, r->vocab, high), scale = r->scale[row * r->scale_stride];
      r->lse[row] = high + std::log(total);
      r->loss[row] = target == r->ignore ? 0 : r->lse[row] - chosen;
      if (target == r->ignore) {
        std::fill(x, x + r->vocab, 0.0f);
      } else {
        row_scale<W>(x, r->vocab, scale / total);
        if (target != kElsewhereTarget) x[target] -= scale;
      }
    }
  }
};

struct Gradient {
  template <int W>
  static CAIRN_INLINE void run(const Rows* r, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = r->logits + row * r->vocab;
      const int64_t target = r->targets[row];
      if (target == r->ignore) {
        std::fill(x, x + r->vocab, 0.0f);
        continue;
      }
      const float scale = r->scale[row * r->scale_stride];
      row_exponentials<W, true>(x, r->vocab, r->lse[row]);
      row_scale<W>(x, r->vocab, scale);
      if (target != kElsewhereTarget) x[target] -= scale;
    }
  }
};

void check(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& lse) {
  CAIRN_CHECK(logits.dim() == 2 && targets.numel() == logits.size(0) && lse.numel() == logits.size(0),
              "cross entropy of logits {} with {} targets and {} sums", c10::str(logits.sizes()), targets.numel(), lse.numel());
}

void check_targets(const at::Tensor& targets, int64_t vocab, int64_t ignore) {
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i)
    if (target[i] != ignore && target[i] != kElsewhereTarget && (target[i] < 0 || target[i] >= vocab))
      base::fail_input("target {} of row {} is outside the vocabulary of {}", target[i], i, vocab);
}

bool fits(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets) {
  return all_cpu_float(logits, lse) && targets.device().is_cpu() && targets.scalar_type() == at::kLong && targets.is_contiguous();
}

template <class Body>
void run_rows(const Rows& rows, int64_t count) {
  parallel_rows(count, kGrainFloats / std::max<int64_t>(1, rows.vocab),
                [&rows](int64_t begin, int64_t end) { run<Body>(&rows, begin, end); });
}

// Half-precision logits are widened a chunk of rows at a time, so that no fp32 copy of all of them exists.
constexpr int64_t kWideFloats = int64_t{1} << 24;

template <class Part>
void by_row_chunks(const at::Tensor& logits, const Part& part) {
  const int64_t rows = logits.size(0), stretch = std::max<int64_t>(1, kWideFloats / std::max<int64_t>(1, logits.size(1)));
  for (int64_t begin = 0; begin < rows; begin += stretch) part(begin, std::min(stretch, rows - begin));
}

at::Tensor chunk_of_scale(const at::Tensor& scale, int64_t begin, int64_t count) {
  return scale.numel() == 1 ? scale : scale.narrow(0, begin, count);
}

}  // namespace

void cross_entropy(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets, int64_t ignore) {
  check(logits, targets, lse);
  if (cross_entropy_on_cuda(loss, lse, logits, targets, ignore)) return;
  if (is_half_precision(logits))
    return by_row_chunks(logits, [&](int64_t begin, int64_t count) {
      cross_entropy(loss.narrow(0, begin, count), lse.narrow(0, begin, count), widened(logits.narrow(0, begin, count)),
                    targets.narrow(0, begin, count), ignore);
    });
  if (!fits(logits, lse, targets) || !all_cpu_float(loss)) return reference::cross_entropy(loss, lse, logits, targets, ignore);
  check_targets(targets, logits.size(1), ignore);
  const Rows rows{loss.mutable_data_ptr<float>(),
                  lse.mutable_data_ptr<float>(),
                  logits.mutable_data_ptr<float>(),
                  targets.const_data_ptr<int64_t>(),
                  nullptr,
                  0,
                  logits.size(1),
                  ignore};
  run_rows<Loss>(rows, logits.size(0));
}

void cross_entropy_backward(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                            int64_t ignore) {
  check(logits, targets, lse);
  CAIRN_CHECK(scale.numel() == 1 || scale.numel() == logits.size(0), "{} scales for {} rows", scale.numel(), logits.size(0));
  if (cross_entropy_backward_on_cuda(logits, lse, targets, scale, ignore)) return;
  if (is_half_precision(logits))
    return by_row_chunks(logits, [&](int64_t begin, int64_t count) {
      const at::Tensor wide = widened(logits.narrow(0, begin, count));
      cross_entropy_backward(wide, lse.narrow(0, begin, count), targets.narrow(0, begin, count), chunk_of_scale(scale, begin, count),
                             ignore);
      logits.narrow(0, begin, count).copy_(wide);
    });
  if (!fits(logits, lse, targets)) return reference::cross_entropy_backward(logits, lse, targets, scale, ignore);
  check_targets(targets, logits.size(1), ignore);
  const at::Tensor factors = scale.to(at::kFloat).contiguous();
  const Rows rows{nullptr,
                  lse.mutable_data_ptr<float>(),
                  logits.mutable_data_ptr<float>(),
                  targets.const_data_ptr<int64_t>(),
                  factors.const_data_ptr<float>(),
                  scale.numel() == 1 ? 0 : 1,
                  logits.size(1),
                  ignore};
  run_rows<Gradient>(rows, logits.size(0));
}

void cross_entropy_and_gradient(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                                const at::Tensor& scale, int64_t ignore) {
  check(logits, targets, lse);
  CAIRN_CHECK(scale.numel() == 1 || scale.numel() == logits.size(0), "{} scales for {} rows", scale.numel(), logits.size(0));
  if (cross_entropy_and_gradient_on_cuda(loss, lse, logits, targets, scale, ignore)) return;
  if (is_half_precision(logits))
    return by_row_chunks(logits, [&](int64_t begin, int64_t count) {
      const at::Tensor wide = widened(logits.narrow(0, begin, count));
      cross_entropy_and_gradient(loss.narrow(0, begin, count), lse.narrow(0, begin, count), wide, targets.narrow(0, begin, count),
                                 chunk_of_scale(scale, begin, count), ignore);
      logits.narrow(0, begin, count).copy_(wide);
    });
  if (!fits(logits, lse, targets) || !all_cpu_float(loss)) {
    reference::cross_entropy(loss, lse, logits, targets, ignore);
    return reference::cross_entropy_backward(logits, lse, targets, scale, ignore);
  }
  check_targets(targets, logits.size(1), ignore);
  const at::Tensor factors = scale.to(at::kFloat).contiguous();
  const Rows rows{loss.mutable_data_ptr<float>(),
                  lse.mutable_data_ptr<float>(),
                  logits.mutable_data_ptr<float>(),
                  targets.const_data_ptr<int64_t>(),
                  factors.const_data_ptr<float>(),
                  scale.numel() == 1 ? 0 : 1,
                  logits.size(1),
                  ignore};
  run_rows<LossAndGradient>(rows, logits.size(0));
}

}  // namespace cairn::kernels
