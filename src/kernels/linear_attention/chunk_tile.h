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

using simd::Float;
using simd::load;
using simd::run;
using simd::small_gemm;
using simd::store;

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

// One log decay of each token and key dim. Sums are made where they are used, over as few tokens as it takes: the difference of two long
// sums would have their rounding.
inline void load_decays(float* to, int64_t width, const LinearProblem& p, const ChunkTokens& c, int64_t begin, int64_t end) {
  if (p.g.data == nullptr) {
    std::memset(to, 0, static_cast<size_t>(c.count * width) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < c.count; ++i, to += width) {
    const float* row = p.g.at(c.batch, c.begin + i, c.head);
    for (int64_t d = begin; d < end; ++d) to[d - begin] = row[d * p.g_element];
    for (int64_t d = end - begin; d < width; ++d) to[d] = 0;
  }
}

// Replaces decays by their sums from the chunk's first token on, inclusive: b.
inline void sum_from_first(float* g, int64_t width, int64_t count) {
  for (int64_t i = 1; i < count; ++i)
    for (int64_t d = 0; d < width; ++d) g[i * width + d] += g[(i - 1) * width + d];
}

// Overwrites to with the sums of the decays after each token of the chunk: b_C - b.
inline void sum_after(float* to, const float* g, int64_t width, int64_t count) {
  std::memset(to + (count - 1) * width, 0, static_cast<size_t>(width) * sizeof(float));
  for (int64_t i = count - 2; i >= 0; --i)
    for (int64_t d = 0; d < width; ++d) to[i * width + d] = to[(i + 1) * width + d] + g[(i + 1) * width + d];
}

// to = x exp(b), element by element; to may be x.
template <int W>
CAIRN_INLINE void decayed(float* to, const float* x, const float* b, int64_t width) {
  for (int64_t d = 0; d < width; d += W) store<W>(to + d, load<W>(x + d) * simd::exp<W>(load<W>(b + d)));
}

inline void transposed(float* to, int64_t to_row, const float* from, int64_t from_row, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
}

// A pair of halves of a block of tokens: the right half reads the left one. Token m is the left half's last.
struct Halves {
  int64_t left, right, half, right_count;
};

// Calls visit for all pairs of halves, large and small, down to blocks of kBlock tokens.
template <class Visit>
CAIRN_INLINE void each_halves(int64_t count, int64_t chunk, const Visit& visit) {
  for (int64_t half = chunk / 2; half >= kBlock; half /= 2)
    for (int64_t left = 0; left + half < count; left += 2 * half)
      visit(Halves{left, left + half, half, std::min(half, count - left - half)});
}

// Calls use(row, d, decay) for the tokens of the left half with exp(b_m - b_j), for vectors of key dims.
template <int W, class Use>
CAIRN_INLINE void each_left(const Halves& h, const float* g, int64_t width, const Use& use) {
  for (int64_t d = 0; d < width; d += W) {
    Float<W> sum{};
    for (int64_t j = h.half - 1; j >= 0; --j) {
      use(j, d, simd::exp<W>(sum));
      sum += load<W>(g + (h.left + j) * width + d);
    }
  }
}
// The same for the right half with exp(b_r - b_m).
template <int W, class Use>
CAIRN_INLINE void each_right(const Halves& h, const float* g, int64_t width, const Use& use) {
  for (int64_t d = 0; d < width; d += W) {
    Float<W> sum{};
    for (int64_t r = 0; r < h.right_count; ++r) {
      sum += load<W>(g + (h.right + r) * width + d);
      use(r, d, simd::exp<W>(sum));
    }
  }
}

// The scaled keys exp(b_m - b_j) k_j of a left half and queries exp(b_r - b_m) q_r of a right half. Neither factor exceeds 1.
template <int W>
CAIRN_INLINE void decay_halves(float* left, float* right, const Halves& h, const float* q, const float* k, const float* g, int64_t width) {
  each_left<W>(
      h, g, width, [&](int64_t j, int64_t d, Float<W> decay) __attribute__((always_inline)) {
        store<W>(left + j * width + d, load<W>(k + (h.left + j) * width + d) * decay);
      });
  each_right<W>(
      h, g, width, [&](int64_t r, int64_t d, Float<W> decay) __attribute__((always_inline)) {
        store<W>(right + r * width + d, load<W>(q + (h.right + r) * width + d) * decay);
      });
}

// Calls use(r, j, sums) for the pairs j <= r within the smallest blocks; `sums` [width] is b_r - b_j, null where j = r.
template <int W, class Use>
CAIRN_INLINE void each_near_pair(int64_t count, const float* g, int64_t width, float* sums, const Use& use) {
  for (int64_t r = 0; r < count; ++r) {
    use(r, r, nullptr);
    std::memcpy(sums, g + r * width, static_cast<size_t>(width) * sizeof(float));
    for (int64_t j = r - 1; j >= r / kBlock * kBlock; --j) {
      use(r, j, sums);
      for (int64_t d = 0; d < width; d += W) store<W>(sums + d, load<W>(sums + d) + load<W>(g + j * width + d));
    }
  }
}

// Overwrites a [count, chunk] with the scores of all pairs, zero where j > r or the documents differ. Scratch: left, right [chunk / 2,
// width], turned [width, chunk / 2], sums [width].
template <int W>
CAIRN_INLINE void scores(float* a, const ChunkTokens& c, int64_t chunk, const float* q, const float* k, const float* g, int64_t width,
                         float* left, float* right, float* turned, float* sums) {
  std::memset(a, 0, static_cast<size_t>(c.count * chunk) * sizeof(float));
  each_halves(
      c.count, chunk, [&](const Halves& h) __attribute__((always_inline)) {
        decay_halves<W>(left, right, h, q, k, g, width);
        transposed(turned, h.half, left, width, h.half, width);
        small_gemm<W>(h.right_count, h.half, width, a + h.right * chunk + h.left, chunk, right, width, 1, turned, h.half);
      });
  each_near_pair<W>(
      c.count, g, width, sums, [&](int64_t r, int64_t j, const float* decay) __attribute__((always_inline)) {
        const float *q_r = q + r * width, *k_j = k + j * width;
        Float<W> sum{};
        for (int64_t d = 0; d < width; d += W) {
          const Float<W> product = load<W>(q_r + d) * load<W>(k_j + d);
          sum += decay == nullptr ? product : product * simd::exp<W>(load<W>(decay + d));
        }
        a[r * chunk + j] = simd::sum<W>(sum);
      });
  for (int64_t r = 0; r < c.count; ++r)
    for (int64_t j = 0; j < r; ++j)
      if (c.segment[j] != c.segment[r]) a[r * chunk + j] = 0;
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
