// SwiGLU on the CPU: one pass, with the exponential computed in registers.
#include "kernels/swiglu.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor.h"
#include "kernels/layers/swiglu_cuda.h"
#include "kernels/low_precision.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr int64_t kGrainFloats = 16384;

template <int W>
CAIRN_INLINE Float<W> sigmoid(const Float<W>& x) {
  return 1.0f / (1.0f + simd::exp<W>(-x));
}

template <int W>
CAIRN_INLINE void forward(float* y, const float* gate, const float* up) {
  const Float<W> g = load<W>(gate);
  store<W>(y, g * sigmoid<W>(g) * load<W>(up));
}

template <int W>
CAIRN_INLINE void backward(float* dgate, float* dup, float* y, const float* dy, const float* gate, const float* up) {
  const Float<W> g = load<W>(gate), u = load<W>(up), d = load<W>(dy), s = sigmoid<W>(g), silu = g * s;
  store<W>(dgate, d * u * s * (1.0f + g * (1.0f - s)));
  store<W>(dup, d * silu);
  if (y != nullptr) store<W>(y, silu * u);
}

// The last columns of a row, too few for a vector, go through padded copies.
struct Tail {
  float at[16] = {};
  Tail(const float* from, int64_t n) { std::memcpy(at, from, static_cast<size_t>(n) * sizeof(float)); }
  Tail() = default;
  void write(float* to, int64_t n) const { std::memcpy(to, at, static_cast<size_t>(n) * sizeof(float)); }
};

struct Forward {
  template <int W>
  static CAIRN_INLINE void run(float* y, const float* gate_up, int64_t ff, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *gate = gate_up + row * 2 * ff, *up = gate + ff;
      float* to = y + row * ff;
      int64_t d = 0;
      for (; d + W <= ff; d += W) forward<W>(to + d, gate + d, up + d);
      if (d == ff) continue;
      const Tail g(gate + d, ff - d), u(up + d, ff - d);
      Tail result;
      forward<W>(result.at, g.at, u.at);
      result.write(to + d, ff - d);
    }
  }
};

struct Backward {
  template <int W>
  static CAIRN_INLINE void run(float* dgate_up, float* y, const float* dy, const float* gate_up, int64_t ff, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *gate = gate_up + row * 2 * ff, *up = gate + ff, *from = dy + row * ff;
      float *dgate = dgate_up + row * 2 * ff, *dup = dgate + ff, *again = y == nullptr ? nullptr : y + row * ff;
      int64_t d = 0;
      for (; d + W <= ff; d += W) backward<W>(dgate + d, dup + d, again == nullptr ? nullptr : again + d, from + d, gate + d, up + d);
      const int64_t left = ff - d;
      if (left == 0) continue;
      const Tail g(gate + d, left), u(up + d, left), f(from + d, left);
      Tail to_gate, to_up, to_y;
      backward<W>(to_gate.at, to_up.at, to_y.at, f.at, g.at, u.at);
      to_gate.write(dgate + d, left);
      to_up.write(dup + d, left);
      if (again != nullptr) to_y.write(again + d, left);
    }
  }
};

void check(const at::Tensor& y, const at::Tensor& gate_up) {
  CAIRN_CHECK(2 * y.size(-1) == gate_up.size(-1) && 2 * y.numel() == gate_up.numel(), "SwiGLU from {} to {}", c10::str(gate_up.sizes()),
              c10::str(y.sizes()));
}

}  // namespace

void swiglu(const at::Tensor& y, const at::Tensor& gate_up, at::Tensor* amax) {
  check(y, gate_up);
  if (swiglu_on_cuda(y, gate_up, amax)) return;
  if (is_half_precision(gate_up)) {
    const at::Tensor wide = empty_widened(y);
    swiglu(wide, widened(gate_up));
    y.copy_(wide);
    return;
  }
  if (!all_cpu_float(y, gate_up)) return reference::swiglu(y, gate_up);
  const int64_t ff = std::max<int64_t>(1, y.size(-1));
  float* to = y.mutable_data_ptr<float>();
  const float* from = gate_up.const_data_ptr<float>();
  parallel_rows(y.numel() / ff, kGrainFloats / ff, [=](int64_t begin, int64_t end) { run<Forward>(to, from, ff, begin, end); });
}

void swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y, at::Tensor* amax) {
  check(dy, gate_up);
  check(dy, dgate_up);
  if (swiglu_backward_on_cuda(dgate_up, dy, gate_up, y, amax)) return;
  if (is_half_precision(gate_up)) {
    const at::Tensor wide = widened(gate_up), again = y != nullptr ? empty_widened(*y) : at::Tensor();
    swiglu_backward(wide, widened(dy), wide, y != nullptr ? &again : nullptr);
    dgate_up.copy_(wide);
    if (y != nullptr) y->copy_(again);
    return;
  }
  if (!all_cpu_float(dgate_up, dy, gate_up) || (y != nullptr && !all_cpu_float(*y)))
    return reference::swiglu_backward(dgate_up, dy, gate_up, y);
  const int64_t ff = std::max<int64_t>(1, dy.size(-1));
  float *to = dgate_up.mutable_data_ptr<float>(), *again = y == nullptr ? nullptr : y->mutable_data_ptr<float>();
  const float *gradient = dy.const_data_ptr<float>(), *from = gate_up.const_data_ptr<float>();
  parallel_rows(dy.numel() / ff, kGrainFloats / ff,
                [=](int64_t begin, int64_t end) { run<Backward>(to, again, gradient, from, ff, begin, end); });
}

}  // namespace cairn::kernels
