// What the CPU kernels of a chunk share: rows in padded scratch, sums of log decays, documents, and the scores between tokens by halves
// (linear_attention.h). Internal to kernels/linear_attention.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/cpu/small_gemm.h"
#include "kernels/linear_attention/linear_problem.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {

using namespace simd;

inline constexpr int64_t kBlock = 8;  // tokens of the smallest blocks, in which each pair is made by itself

// The tokens of one chunk and their documents: token i is in the segment-th document that started in this chunk.
struct ChunkTokens {
  int64_t batch, head, begin, count;
  int64_t seeing = 0;      // the first so many see the state before the chunk
  int64_t remembered = 0;  // those from here on are seen by the state after it
  uint16_t segment[kChunkMax];

  ChunkTokens(const LinearProblem& p, const LinearTask& task)
      : batch(task.batch), head(task.head), begin(task.chunk * p.chunk), count(std::min(p.chunk, p.length - begin)) {
    const bool* starts = p.starts == nullptr ? nullptr : p.starts + batch * p.length + begin;
    uint16_t documents = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (starts != nullptr && starts[i]) ++documents, remembered = i;
      if (documents == 0) seeing = i + 1;
      segment[i] = documents;
    }
  }
  bool keeps_state() const { return segment[count - 1] == 0; }  // a state before the chunk is not forgotten in it
};

// A chunk's rows times `factor`, columns [begin, end) of each, into scratch rows of `width` floats padded with zeros.
inline void load_rows(float* to, int64_t width, const LinearRows& from, const ChunkTokens& c, int64_t begin, int64_t end, float factor) {
  for (int64_t i = 0; i < c.count; ++i, to += width) {
    const float* row = from.at(c.batch, c.begin + i, c.head) + begin;
    for (int64_t d = 0; d < end - begin; ++d) to[d] = factor * row[d];
    for (int64_t d = end - begin; d < width; ++d) to[d] = 0;
  }
}

// The sums b of log decays from the chunk's begin, inclusive.
inline void load_sums(float* to, int64_t width, const LinearProblem& p, const ChunkTokens& c, int64_t begin, int64_t end) {
  if (p.g.data == nullptr) {
    std::memset(to, 0, static_cast<size_t>(c.count * width) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < c.count; ++i, to += width) {
    const float *row = p.g.at(c.batch, c.begin + i, c.head), *above = i == 0 ? nullptr : to - width;
    for (int64_t d = begin; d < end; ++d) to[d - begin] = (above == nullptr ? 0 : above[d - begin]) + row[d * p.g_element];
    for (int64_t d = end - begin; d < width; ++d) to[d] = 0;
  }
}

// to = x exp(b - c), element by element; to may be x.
template <int W>
CAIRN_INLINE void decayed(float* to, const float* x, const float* b, const float* c, int64_t width) {
  for (int64_t d = 0; d < width; d += W) store<W>(to + d, load<W>(x + d) * simd::exp<W>(load<W>(b + d) - load<W>(c + d)));
}
template <int W>
CAIRN_INLINE void decayed(float* to, const float* x, const float* b, int64_t width) {  // x exp(b)
  for (int64_t d = 0; d < width; d += W) store<W>(to + d, load<W>(x + d) * simd::exp<W>(load<W>(b + d)));
}

inline void transposed(float* to, int64_t to_row, const float* from, int64_t from_row, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
}

// A pair of halves of a block of tokens: the right half reads the left one. Token `middle` is the left half's last.
struct Halves {
  int64_t left, right, half, right_count;
  int64_t middle() const { return right - 1; }
};

// Calls visit for all pairs of halves, large and small, down to blocks of kBlock tokens.
template <class Visit>
CAIRN_INLINE void each_halves(int64_t count, int64_t chunk, const Visit& visit) {
  for (int64_t half = chunk / 2; half >= kBlock; half /= 2)
    for (int64_t left = 0; left + half < count; left += 2 * half)
      visit(Halves{left, left + half, half, std::min(half, count - left - half)});
}

// The scaled keys exp(b_m - b_j) k_j of a left half and queries exp(b_r - b_m) q_r of a right half. Neither factor exceeds 1.
template <int W>
CAIRN_INLINE void decay_halves(float* left, float* right, const Halves& h, const float* q, const float* k, const float* b, int64_t width) {
  const float* middle = b + h.middle() * width;
  for (int64_t j = 0; j < h.half; ++j) decayed<W>(left + j * width, k + (h.left + j) * width, middle, b + (h.left + j) * width, width);
  for (int64_t r = 0; r < h.right_count; ++r)
    decayed<W>(right + r * width, q + (h.right + r) * width, b + (h.right + r) * width, middle, width);
}

// Overwrites a [count, chunk] with the scores of all pairs, zero where j > r or the documents differ. Scratch: left, right [chunk / 2,
// width], turned [width, chunk / 2].
template <int W>
CAIRN_INLINE void scores(float* a, const ChunkTokens& c, int64_t chunk, const float* q, const float* k, const float* b, int64_t width,
                         float* left, float* right, float* turned) {
  std::memset(a, 0, static_cast<size_t>(c.count * chunk) * sizeof(float));
  each_halves(
      c.count, chunk, [&](const Halves& h) __attribute__((always_inline)) {
        decay_halves<W>(left, right, h, q, k, b, width);
        transposed(turned, h.half, left, width, h.half, width);
        small_gemm<W>(h.right_count, h.half, width, a + h.right * chunk + h.left, chunk, right, width, 1, turned, h.half);
      });
  for (int64_t r = 0; r < c.count; ++r) {
    const float *q_r = q + r * width, *b_r = b + r * width;
    for (int64_t j = r / kBlock * kBlock; j <= r; ++j) {
      const float *k_j = k + j * width, *b_j = b + j * width;
      Float<W> sum{};
      for (int64_t d = 0; d < width; d += W) sum += load<W>(q_r + d) * load<W>(k_j + d) * simd::exp<W>(load<W>(b_r + d) - load<W>(b_j + d));
      a[r * chunk + j] = simd::sum<W>(sum);
    }
    for (int64_t j = 0; j < r; ++j)
      if (c.segment[j] != c.segment[r]) a[r * chunk + j] = 0;
  }
}

// own + diag(factors) incoming, [key_dim, value_dim]; own itself where nothing comes in.
inline const float* with_incoming(float* to, const float* own, const float* factors, const float* incoming, int64_t keys, int64_t values) {
  if (incoming == nullptr) return own;
  for (int64_t d = 0; d < keys; ++d) {
    const float factor = factors[d];
    for (int64_t e = 0; e < values; ++e) to[d * values + e] = own[d * values + e] + (factor == 0 ? 0 : factor * incoming[d * values + e]);
  }
  return to;
}

}  // namespace cairn::kernels

#pragma GCC diagnostic pop
