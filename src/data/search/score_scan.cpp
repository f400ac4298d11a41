#include "data/search/score_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // about passing wide vectors between functions: all of them are inlined

namespace cairn::data {
namespace {

namespace simd = kernels::simd;

struct RaiseToLargest {
  template <int W>
  static CAIRN_INLINE void run(const float* scores, int64_t rows, int64_t columns, const float* offset, int32_t first_column, float* best,
                               float* second, int32_t* which) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = scores + r * columns;
      simd::Float<W> top = simd::splat<W>(-INFINITY), next = top;
      simd::Int<W> at{}, column = simd::lane_indices<W>();
      int64_t c = 0;
      for (; c + W <= columns; c += W) {
        const simd::Float<W> score = simd::load<W>(row + c) - simd::load<W>(offset + c);
        const simd::Int<W> above = score > top;
        next = simd::maximum<W>(next, above ? top : score);
        top = above ? score : top;
        at = above ? column : at;
        column += W;
      }
      float values[W], others[W];
      int32_t columns_of[W];
      std::memcpy(values, &top, sizeof values);
      std::memcpy(others, &next, sizeof others);
      std::memcpy(columns_of, &at, sizeof columns_of);
      float most = values[0], less = others[0];
      int32_t where = columns_of[0];
      for (int i = 1; i < W; ++i) {
        less = std::max({less, others[i], std::min(most, values[i])});
        if (values[i] > most || (values[i] == most && columns_of[i] < where)) most = values[i], where = columns_of[i];
      }
      for (; c < columns; ++c) {
        const float score = row[c] - offset[c];
        less = std::max(less, std::min(most, score));
        if (score > most) most = score, where = static_cast<int32_t>(c);
      }
      second[r] = std::max({second[r], less, std::min(best[r], most)});
      if (most > best[r]) best[r] = most, which[r] = first_column + where;
    }
  }
};

struct ColumnsFrom {
  template <int W>
  static CAIRN_INLINE void run(const float* scores, int64_t columns, float bound, std::vector<int32_t>* into) {
    const simd::Float<W> least = simd::splat<W>(bound);
    int64_t c = 0;
    constexpr int kTogether = 4;
    for (; c + kTogether * W <= columns; c += kTogether * W) {
      simd::Float<W> most = simd::load<W>(scores + c);
      for (int i = 1; i < kTogether; ++i) most = simd::maximum<W>(most, simd::load<W>(scores + c + i * W));
      const simd::Int<W> any = most >= least;
      int64_t words[W / 2];
      std::memcpy(words, &any, sizeof words);
      int64_t found = 0;
      for (const int64_t word : words) found |= word;
      if (found == 0) continue;
      for (int64_t i = c; i < c + kTogether * W; ++i)
        if (scores[i] >= bound) into->push_back(static_cast<int32_t>(i));
    }
    for (; c < columns; ++c)
      if (scores[c] >= bound) into->push_back(static_cast<int32_t>(c));
  }
};

struct LargestOf {
  template <int W>
  static CAIRN_INLINE void run(const float* scores, int64_t columns, float* result) {
    simd::Float<W> top = simd::splat<W>(-INFINITY);
    int64_t c = 0;
    for (; c + W <= columns; c += W) top = simd::maximum<W>(top, simd::load<W>(scores + c));
    float most = simd::maximum_lane<W>(top);
    for (; c < columns; ++c) most = std::max(most, scores[c]);
    *result = most;
  }
};

constexpr int kWide = 8;
typedef double WideLanes __attribute__((vector_size(8 * kWide)));
typedef float NarrowLanes __attribute__((vector_size(4 * kWide)));

struct AddRounded {
  template <int W>
  static CAIRN_INLINE void run(const float* x, int64_t count, double magic, double* into) {
    int64_t i = 0;
    for (; i + kWide <= count; i += kWide) {
      NarrowLanes narrow;
      WideLanes sum;
      std::memcpy(&narrow, x + i, sizeof narrow);
      std::memcpy(&sum, into + i, sizeof sum);
      const WideLanes shifted = __builtin_convertvector(narrow, WideLanes) + magic;
      sum += shifted - magic;
      std::memcpy(into + i, &sum, sizeof sum);
    }
    for (; i < count; ++i) {
      const double shifted = static_cast<double>(x[i]) + magic;
      into[i] += shifted - magic;
    }
  }
};

}  // namespace

void raise_to_largest(const float* scores, int64_t rows, int64_t columns, const float* offset, int32_t first_column, float* best,
                      float* second, int32_t* which) {
  simd::run<RaiseToLargest>(scores, rows, columns, offset, first_column, best, second, which);
}

void columns_from(const float* scores, int64_t columns, float bound, std::vector<int32_t>& into) {
  simd::run<ColumnsFrom>(scores, columns, bound, &into);
}

float largest_of(const float* scores, int64_t columns) {
  float most = -INFINITY;
  simd::run<LargestOf>(scores, columns, &most);
  return most;
}

void add_rounded(const float* x, int64_t count, double magic, double* into) { simd::run<AddRounded>(x, count, magic, into); }

}  // namespace cairn::data
