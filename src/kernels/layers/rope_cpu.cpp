// Rotary position embedding on the CPU, in place, with free row strides.
#include "kernels/rope.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor.h"
#include "kernels/layers/rope_cuda.h"
#include "kernels/low_precision.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr int64_t kGrainFloats = 32768;

struct Rows {
  float* x;
  const float *cos, *sin;  // of the first row's position
  int64_t length, heads, half;
  int64_t batch_stride, row_stride, head_stride;
  float direction;  // 1, or -1 to rotate back
};

struct Rotate {
  // Rows are numbered through all batches.
  template <int W>
  static CAIRN_INLINE void run(const Rows* all, int64_t begin, int64_t end) {
    const Rows& a = *all;
    const int64_t whole = a.half / W * W;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / a.length, at = row % a.length;
      const float *cos = a.cos + at * a.half, *sin = a.sin + at * a.half;
      for (int64_t head = 0; head < a.heads; ++head) {
        float *first = a.x + batch * a.batch_stride + at * a.row_stride + head * a.head_stride, *second = first + a.half;
        for (int64_t d = 0; d < whole; d += W) {
          const Float<W> c = load<W>(cos + d), s = load<W>(sin + d) * a.direction, u = load<W>(first + d), v = load<W>(second + d);
          store<W>(first + d, u * c - v * s);
          store<W>(second + d, v * c + u * s);
        }
        for (int64_t d = whole; d < a.half; ++d) {
          const float c = cos[d], s = sin[d] * a.direction, u = first[d], v = second[d];
          first[d] = u * c - v * s;
          second[d] = v * c + u * s;
        }
      }
    }
  }
};

}  // namespace

void rope(const at::Tensor& x, const RopeTable& table, int64_t position, bool inverse, const at::Tensor* from) {
  CAIRN_CHECK(x.dim() == 4 && table.cos.dim() == 2 && 2 * table.cos.size(1) == x.size(3), "rope of {} by a table of {}",
              c10::str(x.sizes()), c10::str(table.cos.sizes()));
  CAIRN_CHECK(position >= 0 && position + x.size(1) <= table.cos.size(0), "positions {} to {} in a table of {}", position,
              position + x.size(1), table.cos.size(0));
  CAIRN_CHECK(!from || from->sizes() == x.sizes(), "rope of {} into {}", from ? c10::str(from->sizes()) : "", c10::str(x.sizes()));
  if (rope_on_cuda(x, table, position, inverse, from)) return;
  if (from) x.copy_(*from);
  if (is_half_precision(x)) {
    const at::Tensor wide = widened(x);
    rope(wide, table, position, inverse);
    x.copy_(wide);
    return;
  }
  if (!is_cpu_float(x) || x.stride(3) != 1 || !all_cpu_float(table.cos, table.sin)) return reference::rope(x, table, position, inverse);
  const int64_t half = table.cos.size(1);
  const Rows rows{x.mutable_data_ptr<float>(),
                  table.cos.const_data_ptr<float>() + position * half,
                  table.sin.const_data_ptr<float>() + position * half,
                  x.size(1),
                  x.size(2),
                  half,
                  x.stride(0),
                  x.stride(1),
                  x.stride(2),
                  inverse ? -1.0f : 1.0f};
  const int64_t floats_per_row = std::max<int64_t>(1, x.size(2) * x.size(3));
  parallel_rows(x.size(0) * x.size(1), kGrainFloats / floats_per_row,
                [&rows](int64_t begin, int64_t end) { run<Rotate>(&rows, begin, end); });
}

void rope_backward(const at::Tensor& x, const QkvGradients& from, const RopeTable& table, int64_t position) {
  const int64_t q = from.q.size(2), k = from.k.size(2), v = from.v.size(2);
  CAIRN_CHECK(x.dim() == 4 && x.size(2) == q + k + v && x.is_contiguous(), "{}, {} and {} heads into {}", q, k, v, c10::str(x.sizes()));
  if (rope_backward_on_cuda(x, from, table, position)) return;
  rope(x.narrow(2, 0, q), table, position, /*inverse=*/true, &from.q);
  rope(x.narrow(2, q, k), table, position, /*inverse=*/true, &from.k);
  x.narrow(2, q + k, v).copy_(from.v);
}

}  // namespace cairn::kernels
