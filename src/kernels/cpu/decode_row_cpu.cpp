#include "kernels/decode_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

struct RmsNorm {
  template <int W>
  static CAIRN_INLINE void run(float* y, const float* x, const float* gain, int64_t n, double eps) {
    const int64_t whole = n / W * W;
    Float<W> squares = {};
    for (int64_t d = 0; d < whole; d += W) squares += load<W>(x + d) * load<W>(x + d);
    float total = sum<W>(squares);
    for (int64_t d = whole; d < n; ++d) total += x[d] * x[d];
    const auto scale = static_cast<float>(1 / std::sqrt(total / static_cast<double>(n) + eps));
    for (int64_t d = 0; d < whole; d += W) store<W>(y + d, load<W>(x + d) * scale * load<W>(gain + d));
    for (int64_t d = whole; d < n; ++d) y[d] = x[d] * scale * gain[d];
  }
};

struct LayerNorm {
  template <int W>
  static CAIRN_INLINE void run(float* y, const float* x, const float* gain, const float* shift, int64_t n, double eps) {
    const int64_t whole = n / W * W;
    Float<W> sums = {}, squares = {};
    for (int64_t d = 0; d < whole; d += W) sums += load<W>(x + d);
    float total = sum<W>(sums);
    for (int64_t d = whole; d < n; ++d) total += x[d];
    const auto mean = static_cast<float>(total / static_cast<double>(n));
    for (int64_t d = 0; d < whole; d += W) squares += (load<W>(x + d) - mean) * (load<W>(x + d) - mean);
    float spread = sum<W>(squares);
    for (int64_t d = whole; d < n; ++d) spread += (x[d] - mean) * (x[d] - mean);
    const auto scale = static_cast<float>(1 / std::sqrt(spread / static_cast<double>(n) + eps));
    for (int64_t d = 0; d < whole; d += W) store<W>(y + d, (load<W>(x + d) - mean) * scale * load<W>(gain + d) + load<W>(shift + d));
    for (int64_t d = whole; d < n; ++d) y[d] = (x[d] - mean) * scale * gain[d] + shift[d];
  }
};

// n floats through `f`, the last ones padded to a whole vector.
template <int W, class F>
CAIRN_INLINE void map(float* x, const float* other, int64_t n, const F& f) {
  int64_t d = 0;
  for (; d + W <= n; d += W) store<W>(x + d, f(load<W>(x + d), load<W>(other + d)));
  if (d == n) return;
  float a[W] = {}, b[W] = {};
  std::copy(x + d, x + n, a), std::copy(other + d, other + n, b);
  store<W>(a, f(load<W>(a), load<W>(b)));
  std::copy(a, a + (n - d), x + d);
}

struct Swiglu {
  template <int W>
  static CAIRN_INLINE void run(float* gate, const float* up, int64_t n) {
    map<W>(
        gate, up, n, [](const Float<W>& g, const Float<W>& u) __attribute__((always_inline)) { return g / (1.0f + exp<W>(-g)) * u; });
  }
};

// gelu(x) = x / (1 + exp(-2 c (x + 0.044715 x^3))), c = sqrt(2 / pi): tanh written by the exponential.
struct Gelu {
  template <int W>
  static CAIRN_INLINE void run(float* x, int64_t n) {
    map<W>(
        x, x, n, [](const Float<W>& v, const Float<W>&) __attribute__((always_inline)) {
          return v / (1.0f + exp<W>(-1.5957691216057308f * (v + 0.044715f * v * v * v)));
        });
  }
};

// Scores of W keys at a time: partial sums by key, transposed so that each lane is a key.
template <int W>
CAIRN_INLINE void score_block(float* scores, const float* q, const float* k, int64_t stride, int64_t count, int64_t head_dim, float scale) {
  Float<W> parts[W] = {};
  const int64_t whole = head_dim / W * W;
#pragma GCC unroll 16
  for (int j = 0; j < W; ++j) {
    if (j >= count) break;
    for (int64_t d = 0; d < whole; d += W) parts[j] += load<W>(q + d) * load<W>(k + j * stride + d);
  }
  transpose<W>(parts);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  store<W>(scores, parts[0]);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t d = whole; d < head_dim; ++d) scores[j] += q[d] * k[j * stride + d];
    scores[j] *= scale;
  }
}

// V vectors of the output, from element d on.
template <int W, int V>
CAIRN_INLINE void mix(float* out, const RowAttention& a, const float* weights, float own, float factor, int64_t d) {
  Float<W> sums[V];
  for (int v = 0; v < V; ++v) sums[v] = load<W>(a.own_v + d + v * W) * own;
  const float* from = a.v + d;
  for (int64_t j = 0; j < a.count; ++j, from += a.stride)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[v] += load<W>(from + v * W) * weights[j];
  for (int v = 0; v < V; ++v) store<W>(out + d + v * W, sums[v] * factor);
}

struct Attend {
  template <int W>
  static CAIRN_INLINE void run(float* out, const float* q, const RowAttention* attention, float* scores) {
    const RowAttention a = *attention;
    const float scale = a.scale * kLog2e;
    float own[W];
    score_block<W>(own, q, a.own_k, 0, 1, a.head_dim, scale);
    float highest = own[0];
    for (int64_t j = 0; j < a.count; j += W)
      score_block<W>(scores + j, q, a.k + j * a.stride, a.stride, std::min<int64_t>(W, a.count - j), a.head_dim, scale);
    for (int64_t j = 0; j < a.count; ++j) highest = std::max(highest, scores[j]);
    std::fill(scores + a.count, scores + a.count + W, -std::numeric_limits<float>::infinity());
    Float<W> sums = {};
    for (int64_t j = 0; j < a.count; j += W) {
      const Float<W> weight = exp2<W>(load<W>(scores + j) - highest);
      store<W>(scores + j, weight);
      sums += weight;
    }
    const float mine = std::exp2(own[0] - highest), factor = 1 / (sum<W>(sums) + mine);
    int64_t d = 0;
    for (; d + 4 * W <= a.head_dim; d += 4 * W) mix<W, 4>(out, a, scores, mine, factor, d);
    for (; d + W <= a.head_dim; d += W) mix<W, 1>(out, a, scores, mine, factor, d);
    for (; d < a.head_dim; ++d) {
      float total = a.own_v[d] * mine;
      for (int64_t j = 0; j < a.count; ++j) total += a.v[j * a.stride + d] * scores[j];
      out[d] = total * factor;
    }
  }
};

CAIRN_INLINE int64_t round_up_16(int64_t n) { return (n + 15) / 16 * 16; }

template <int W, int V>
CAIRN_INLINE void mix_runs(float* out, std::span<const KeyRun> runs, const float* weights, float factor, int64_t d) {
  Float<W> sums[V] = {};
  for (const KeyRun& run : runs) {
    const float* from = run.v + d;
    for (int64_t j = 0; j < run.count; ++j, from += run.stride)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[v] += load<W>(from + v * W) * weights[j];
    weights += round_up_16(run.count);
  }
  for (int v = 0; v < V; ++v) store<W>(out + d + v * W, sums[v] * factor);
}

struct AttendRuns {
  template <int W>
  static CAIRN_INLINE void run(float* out, const float* q, const std::span<const KeyRun>* all, int64_t head_dim, float scale,
                               float* scores) {
    const std::span<const KeyRun> runs = *all;
    float highest = -std::numeric_limits<float>::infinity();
    float* at = scores;
    for (const KeyRun& run : runs) {
      for (int64_t j = 0; j < run.count; j += W)
        score_block<W>(at + j, q, run.k + j * run.stride, run.stride, std::min<int64_t>(W, run.count - j), head_dim, scale * kLog2e);
      for (int64_t j = 0; j < run.count; ++j) highest = std::max(highest, at[j]);
      std::fill(at + run.count, at + round_up_16(run.count), -std::numeric_limits<float>::infinity());
      at += round_up_16(run.count);
    }
    Float<W> sums = {};
    for (float* s = scores; s < at; s += W) {
      const Float<W> weight = exp2<W>(load<W>(s) - highest);
      store<W>(s, weight);
      sums += weight;
    }
    const float factor = 1 / sum<W>(sums);
    int64_t d = 0;
    for (; d + 4 * W <= head_dim; d += 4 * W) mix_runs<W, 4>(out, runs, scores, factor, d);
    for (; d + W <= head_dim; d += W) mix_runs<W, 1>(out, runs, scores, factor, d);
    for (; d < head_dim; ++d) {
      float total = 0;
      const float* weights = scores;
      for (const KeyRun& run : runs) {
        for (int64_t j = 0; j < run.count; ++j) total += run.v[j * run.stride + d] * weights[j];
        weights += round_up_16(run.count);
      }
      out[d] = total * factor;
    }
  }
};

struct LogSumExp {
  template <int W>
  static CAIRN_INLINE void run(const float* x, int64_t n, float highest, double* total) {
    int64_t i = 0;
    for (; i + W <= n; i += 64 * W) {  // few enough at a time that fp32 loses nothing
      Float<W> sums = {};
      const int64_t end = std::min(i + 64 * W, n / W * W);
      for (int64_t j = i; j < end; j += W) sums += exp2<W>((load<W>(x + j) - highest) * kLog2e);
      *total += sum<W>(sums);
    }
    for (i = n / W * W; i < n; ++i) *total += std::exp(x[i] - highest);
  }
};

}  // namespace

void rms_norm_row(float* y, const float* x, const float* gain, int64_t n, double eps) { run<RmsNorm>(y, x, gain, n, eps); }

void layer_norm_row(float* y, const float* x, const float* gain, const float* shift, int64_t n, double eps) {
  run<LayerNorm>(y, x, gain, shift, n, eps);
}

void rotate_row(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

void swiglu_row(float* gate, const float* up, int64_t n) { run<Swiglu>(gate, up, n); }

void gelu_row(float* x, int64_t n) { run<Gelu>(x, n); }

void attend_row(float* out, const float* q, const RowAttention& a, float* scores) { run<Attend>(out, q, &a, scores); }

void attend_runs(float* out, const float* q, std::span<const KeyRun> runs, int64_t head_dim, float scale, float* scores) {
  run<AttendRuns>(out, q, &runs, head_dim, scale, scores);
}

RowSummary summarize_row(const float* x, int64_t n) {
  const int64_t largest = std::max_element(x, x + n) - x;
  double total = 0;
  run<LogSumExp>(x, n, x[largest], &total);
  return {largest, static_cast<double>(x[largest]) + std::log(total)};
}

}  // namespace cairn::kernels
