// RMSNorm on the CPU: one pass over each row while it is in cache.
#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor.h"
#include "kernels/layers/rms_norm_cuda.h"
#include "kernels/low_precision.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr int64_t kGrainFloats = 32768;  // about this many floats to a task: 128 KB
constexpr int64_t kColumns = 64;         // columns to a task of the weight gradient: four cache lines of each row
constexpr int64_t kRowsTogether = 64;    // rows summed before they are added to the total, which bounds the rounding

struct ForwardRows {
  float *y, *rstd, *sum;
  const float *x, *r, *weight;  // r null: a plain norm, sum unused
  int64_t embed;
  double eps;
};

struct Forward {
  template <int W>
  static CAIRN_INLINE void run(const ForwardRows* f, int64_t begin, int64_t end) {
    const int64_t embed = f->embed, whole = embed / W * W;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = f->x + row * embed;
      if (f->r != nullptr) {
        float* sum = f->sum + row * embed;
        const float* r = f->r + row * embed;
        for (int64_t d = 0; d < whole; d += W) store<W>(sum + d, load<W>(x + d) + load<W>(r + d));
        for (int64_t d = whole; d < embed; ++d) sum[d] = x[d] + r[d];
        x = sum;
      }
      Float<W> squares = {};
      for (int64_t d = 0; d < whole; d += W) squares += load<W>(x + d) * load<W>(x + d);
      float total = simd::sum<W>(squares);
      for (int64_t d = whole; d < embed; ++d) total += x[d] * x[d];
      const float scale = static_cast<float>(1 / std::sqrt(total / static_cast<double>(embed) + f->eps));
      f->rstd[row] = scale;
      float* y = f->y + row * embed;
      for (int64_t d = 0; d < whole; d += W) store<W>(y + d, load<W>(x + d) * scale * load<W>(f->weight + d));
      for (int64_t d = whole; d < embed; ++d) y[d] = x[d] * scale * f->weight[d];
    }
  }
};

struct BackwardRows {
  float* dx;
  const float *dy, *x, *weight, *rstd, *add;  // add may be null
  int64_t embed;
};

struct InputGradient {
  template <int W>
  static CAIRN_INLINE void run(const BackwardRows* b, int64_t begin, int64_t end) {
    const int64_t embed = b->embed, whole = embed / W * W;
    for (int64_t row = begin; row < end; ++row) {
      const float *dy = b->dy + row * embed, *x = b->x + row * embed, *w = b->weight;
      Float<W> products = {};
      for (int64_t d = 0; d < whole; d += W) products += load<W>(dy + d) * load<W>(w + d) * load<W>(x + d);
      float total = sum<W>(products);
      for (int64_t d = whole; d < embed; ++d) total += dy[d] * w[d] * x[d];
      const float scale = b->rstd[row], along = total / static_cast<float>(embed) * scale * scale;
      float* dx = b->dx + row * embed;
      const float* add = b->add == nullptr ? nullptr : b->add + row * embed;
      for (int64_t d = 0; d < whole; d += W) {
        Float<W> g = scale * (load<W>(dy + d) * load<W>(w + d) - load<W>(x + d) * along);
        if (add != nullptr) g += load<W>(add + d);
        store<W>(dx + d, g);
      }
      for (int64_t d = whole; d < embed; ++d) dx[d] = scale * (dy[d] * w[d] - x[d] * along) + (add != nullptr ? add[d] : 0.0f);
    }
  }
};

// Sums over all rows for columns begin .. end-1 (at most kColumns).
struct WeightGradient {
  template <int W>
  static CAIRN_INLINE void run(const BackwardRows* b, float* dw, int64_t rows, int64_t begin, int64_t end) {
    float total[kColumns] = {};
    for (int64_t first = 0; first < rows; first += kRowsTogether) {
      float part[kColumns] = {};
      for (int64_t row = first; row < std::min(rows, first + kRowsTogether); ++row) {
        const float *dy = b->dy + row * b->embed + begin, *x = b->x + row * b->embed + begin, scale = b->rstd[row];
        int64_t d = 0;
        for (; d + W <= end - begin; d += W) store<W>(part + d, load<W>(part + d) + load<W>(dy + d) * load<W>(x + d) * scale);
        for (; d < end - begin; ++d) part[d] += dy[d] * x[d] * scale;
      }
      for (int64_t d = 0; d < kColumns; ++d) total[d] += part[d];
    }
    for (int64_t d = begin; d < end; ++d) dw[d] += total[d - begin];
  }
};

void check(const at::Tensor& x, const at::Tensor& rstd, int64_t embed) {
  CAIRN_CHECK(embed == x.size(-1) && rstd.numel() * embed == x.numel(), "a norm of {} by a weight of {} with {} row scales",
              c10::str(x.sizes()), embed, rstd.numel());
}

}  // namespace

void add_rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& sum, const at::Tensor& x, const at::Tensor& r,
                  const at::Tensor& weight, double eps) {
  check(x, rstd, weight.numel());
  if (rms_norm_on_cuda(y, rstd, &sum, x, &r, weight, eps, nullptr)) return;
  if (is_half_precision(x)) {
    sum.copy_(x + r);
    return rms_norm(y, rstd, sum, weight, eps);
  }
  if (!all_cpu_float(y, rstd, sum, x, r, weight)) return reference::add_rms_norm(y, rstd, sum, x, r, weight, eps);
  const ForwardRows f{y.mutable_data_ptr<float>(),
                      rstd.mutable_data_ptr<float>(),
                      sum.mutable_data_ptr<float>(),
                      x.const_data_ptr<float>(),
                      r.const_data_ptr<float>(),
                      weight.const_data_ptr<float>(),
                      weight.numel(),
                      eps};
  parallel_rows(rstd.numel(), kGrainFloats / weight.numel(), [&f](int64_t begin, int64_t end) { run<Forward>(&f, begin, end); });
}

void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor* amax) {
  check(x, rstd, weight.numel());
  if (rms_norm_on_cuda(y, rstd, nullptr, x, nullptr, weight, eps, amax)) return;
  if (is_half_precision(x)) {
    const at::Tensor wide = empty_widened(y);
    rms_norm(wide, rstd, widened(x), widened(weight), eps);
    y.copy_(wide);
    return;
  }
  if (!all_cpu_float(y, rstd, x, weight)) return reference::rms_norm(y, rstd, x, weight, eps);
  const ForwardRows f{y.mutable_data_ptr<float>(),
                      rstd.mutable_data_ptr<float>(),
                      nullptr,
                      x.const_data_ptr<float>(),
                      nullptr,
                      weight.const_data_ptr<float>(),
                      weight.numel(),
                      eps};
  parallel_rows(rstd.numel(), kGrainFloats / weight.numel(), [&f](int64_t begin, int64_t end) { run<Forward>(&f, begin, end); });
}

void rms_norm_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor* add, at::Tensor* amax) {
  check(x, rstd, weight.numel());
  if (rms_norm_backward_input_on_cuda(dx, dy, x, weight, rstd, add, amax)) return;
  if (is_half_precision(x)) {
    const at::Tensor wide = empty_widened(dx), round = add != nullptr ? widened(*add) : at::Tensor();
    rms_norm_backward_input(wide, widened(dy), widened(x), widened(weight), rstd, add != nullptr ? &round : nullptr);
    dx.copy_(wide);
    return;
  }
  if (!all_cpu_float(dx, dy, x, weight, rstd) || (add != nullptr && !all_cpu_float(*add)))
    return reference::rms_norm_backward_input(dx, dy, x, weight, rstd, add);
  const BackwardRows b{dx.mutable_data_ptr<float>(),
                       dy.const_data_ptr<float>(),
                       x.const_data_ptr<float>(),
                       weight.const_data_ptr<float>(),
                       rstd.const_data_ptr<float>(),
                       add != nullptr ? add->const_data_ptr<float>() : nullptr,
                       weight.numel()};
  parallel_rows(rstd.numel(), kGrainFloats / weight.numel(), [&b](int64_t begin, int64_t end) { run<InputGradient>(&b, begin, end); });
}

void rms_norm_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, bool accumulate) {
  check(x, rstd, dw.numel());
  if (rms_norm_backward_weight_on_cuda(dw, dy, x, rstd, accumulate)) return;
  if (is_half_precision(x)) return rms_norm_backward_weight(dw, widened(dy), widened(x), rstd, accumulate);
  if (!all_cpu_float(dw, dy, x, rstd)) return reference::rms_norm_backward_weight(dw, dy, x, rstd, accumulate);
  if (!accumulate) dw.zero_();
  const BackwardRows b{nullptr,   dy.const_data_ptr<float>(), x.const_data_ptr<float>(), nullptr, rstd.const_data_ptr<float>(), nullptr,
                       dw.numel()};
  float* to = dw.mutable_data_ptr<float>();
  const int64_t rows = rstd.numel();
  parallel_rows(dw.numel(), kColumns, [&b, to, rows](int64_t begin, int64_t end) { run<WeightGradient>(&b, to, rows, begin, end); });
}

void rms_norm_backward(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor* add) {
  check(x, rstd, weight.numel());
  if (rms_norm_backward_on_cuda(into, dy, x, weight, rstd, add)) return;
  rms_norm_backward_weight(into.dw, dy, x, rstd);
  if (into.y) {
    const at::Tensor scale = rstd.view({-1, 1});
    into.y->copy_((x.reshape({-1, x.size(-1)}).to(scale.scalar_type()) * scale * weight).view(x.sizes()));
  }
  rms_norm_backward_input(into.dx, dy, x, weight, rstd, add, into.amax);  // last: dx may be dy
}

bool has_fused_backward(const at::Tensor& x) { return has_fused_backward_on_cuda(x); }

}  // namespace cairn::kernels
