// Matrix-vector products of decoding on the CPU. A weight [out, in] is read four rows at a time, a weight [in, out] in strips of columns.
// Four rows of x share each read. Each output is summed in an order of its own, so it does not depend on the rows beside it.
#include "kernels/matvec.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr int kOuts = 4;  // rows of the weight read together: enough streams to keep memory busy
constexpr int kRows = 4;  // rows of x that share what was read

struct Product {
  float* y;
  const float* x;
  int64_t y_stride, x_stride;
  const WeightView* w;
  bool add;

  CAIRN_INLINE void put(int64_t row, int64_t o, float total) const {
    if (w->bias != nullptr) total += w->bias[o];
    float& to = y[row * y_stride + o];
    to = add ? to + total : total;
  }
};

// The sum over the lanes, by halves, in registers.
template <int W, int S = W / 2>
CAIRN_INLINE float total_of(const Float<W>& v) {
  if constexpr (S == 0) {
    return v[0];
  } else {
    const Int<W> other = lane_indices<W>() ^ S;
    return total_of<W, S / 2>(v + __builtin_shuffle(v, other));
  }
}

// Fewer than W values, padded with zeros. Row ends use the same vector code: in a scalar loop the compiler may or may not fuse multiply and
// add.
template <int W>
CAIRN_INLINE Float<W> load_end(const float* from, int64_t count) {
  float lanes[W] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return load<W>(lanes);
}

// O outputs of R rows. Two sums per number, so that additions overlap where there are few of them.
template <int W, int O, int R>
CAIRN_INLINE void dots(const Product& p, int64_t row, int64_t o) {
  const int64_t in = p.w->in, whole = in / (2 * W) * (2 * W);
  const float *w = p.w->data + o * in, *x = p.x + row * p.x_stride;
  Float<W> even[O][R] = {}, odd[O][R] = {};
  for (int64_t i = 0; i < whole; i += 2 * W)
#pragma GCC unroll 4
    for (int a = 0; a < O; ++a) {
      const Float<W> first = load<W>(w + a * in + i), second = load<W>(w + a * in + i + W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        even[a][r] += first * load<W>(x + r * p.x_stride + i);
        odd[a][r] += second * load<W>(x + r * p.x_stride + i + W);
      }
    }
  for (int64_t i = whole; i < in; i += W)
    for (int a = 0; a < O; ++a)
      for (int r = 0; r < R; ++r)
        even[a][r] +=
            load_end<W>(w + a * in + i, std::min<int64_t>(W, in - i)) * load_end<W>(x + r * p.x_stride + i, std::min<int64_t>(W, in - i));
  for (int a = 0; a < O; ++a)
    for (int r = 0; r < R; ++r) p.put(row + r, o + a, total_of<W>(even[a][r] + odd[a][r]));
}

template <int R>
struct ByOutput {
  template <int W>
  static CAIRN_INLINE void run(const Product* product, int64_t row, int64_t begin, int64_t end) {
    const Product p = *product;
    constexpr int kTogether = R > 2 && W == 4 ? 2 : kOuts;  // 16 registers hold no more sums than this
    int64_t o = begin;
    for (; o + kTogether <= end; o += kTogether) dots<W, kTogether, R>(p, row, o);
    for (; o < end; ++o) dots<W, 1, R>(p, row, o);
  }
};

// V vectors of outputs of R rows.
template <int W, int V, int R>
CAIRN_INLINE void strip(const Product& p, int64_t row, int64_t o) {
  Float<W> sums[V][R] = {};
  const float *w = p.w->data + o, *x = p.x + row * p.x_stride;
  for (int64_t i = 0; i < p.w->in; ++i, w += p.w->out)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Float<W> part = load<W>(w + v * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[v][r] += part * x[r * p.x_stride + i];
    }
  for (int v = 0; v < V; ++v)
    for (int r = 0; r < R; ++r) {
      float lanes[W];
      store<W>(lanes, sums[v][r]);
      for (int lane = 0; lane < W; ++lane) p.put(row + r, o + v * W + lane, lanes[lane]);
    }
}

template <int R>
struct ByInput {
  template <int W>
  static CAIRN_INLINE void run(const Product* product, int64_t row, int64_t begin, int64_t end) {
    const Product p = *product;
    constexpr int kTogether = R > 2 ? 2 : 4;
    int64_t o = begin;
    for (; o + kTogether * W <= end; o += kTogether * W) strip<W, kTogether, R>(p, row, o);
    for (; o + W <= end; o += W) strip<W, 1, R>(p, row, o);
    if (o == end) return;
    for (int r = 0; r < R; ++r) {
      Float<W> sums = {};
      for (int64_t i = 0; i < p.w->in; ++i) sums += load_end<W>(p.w->data + i * p.w->out + o, end - o) * p.x[(row + r) * p.x_stride + i];
      float lanes[W];
      store<W>(lanes, sums);
      for (int64_t lane = 0; lane < end - o; ++lane) p.put(row + r, o + lane, lanes[lane]);
    }
  }
};

template <template <int> class Body, int R>
void run_rows(const Product& p, int64_t row, int64_t begin, int64_t end) {
  simd::run<Body<R>>(&p, row, begin, end);
}

template <template <int> class Body>
void run_all(const Product& p, int64_t rows, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < rows; row += kRows) switch (std::min<int64_t>(kRows, rows - row)) {
      case 1:
        run_rows<Body, 1>(p, row, begin, end);
        break;
      case 2:
        run_rows<Body, 2>(p, row, begin, end);
        break;
      case 3:
        run_rows<Body, 3>(p, row, begin, end);
        break;
      default:
        run_rows<Body, kRows>(p, row, begin, end);
    }
}

}  // namespace

void matvec(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t rows, const WeightView& w, int64_t begin, int64_t end,
            bool add) {
  const Product p{y, x, y_stride, x_stride, &w, add};
  // Many rows: a part of the weight that stays in cache serves them all before the next part is read.
  const int64_t part = rows <= kRows ? end - begin : std::max<int64_t>(16, 65536 / std::max<int64_t>(w.in, 1) / 16 * 16);
  for (int64_t first = begin; first < end; first += part) {
    const int64_t last = std::min(end, first + part);
    w.fan_in_fan_out ? run_all<ByInput>(p, rows, first, last) : run_all<ByOutput>(p, rows, first, last);
  }
}

}  // namespace cairn::kernels
