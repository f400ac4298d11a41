// The building blocks of the CPU attention kernels: packed panels, register tiles, masks.
//
// Queries and keys are processed in panels of 48, a multiple of every vector width and of every tile height below.
// Scores are kept transposed, [key][query], queries on the lanes: softmax needs no sum across lanes, and the block is already
// packed for the products with V and K that follow.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/attention/attention_problem.h"
#include "kernels/cpu/simd.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {

inline constexpr int kPanel = 48;             // queries or keys in a panel
inline constexpr int kKeyBlock = 2 * kPanel;  // keys worked on at a time
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Register tiles, rows x vectors: as many accumulators as leave room for the operands (32 registers of 16 lanes, 16 of 8;
// of 4 lanes there are 32 on AArch64, 16 on x86-64).
template <int W>
struct Tile;
template <>
struct Tile<16> {
  static constexpr int kScoreRows = 8, kScoreVectors = 3, kRows = 6, kVectors = 4;
};
template <>
struct Tile<8> {
  static constexpr int kScoreRows = 6, kScoreVectors = 2, kRows = 6, kVectors = 2;
};
#if defined(__aarch64__)
template <>
struct Tile<4> {
  static constexpr int kScoreRows = 8, kScoreVectors = 2, kRows = 8, kVectors = 2;
};
#else
template <>
struct Tile<4> {
  static constexpr int kScoreRows = 6, kScoreVectors = 2, kRows = 6, kVectors = 2;
};
#endif

CAIRN_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The layout of the left operand of a product: element (row, k) at a[k * stride + row], or at a[row * stride + k].
enum class Left { by_k, by_row };

// c[Rows][V * W] = or += a b: `k` rank-one updates held in registers. b [k][V * W].
template <int W, int Rows, int V, Left layout, bool add>
CAIRN_INLINE void tile_product(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t k) {
  using namespace simd;
  Float<W> sum[Rows][V];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[r][v] = add ? load<W>(c + r * c_stride + v * W) : Float<W>{};
  for (int64_t i = 0; i < k; ++i) {
    Float<W> right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) right[v] = load<W>(b + i * b_stride + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float left = layout == Left::by_k ? a[i * a_stride + r] : a[r * a_stride + i];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store<W>(c + r * c_stride + v * W, sum[r][v]);
}

// One row of tiles, c[kRows][vectors * W] += a b, cut into tiles of nearly equal width.
template <int W, Left layout, class Tiles = Tile<W>>
CAIRN_INLINE void row_product(float* c, const float* a, int64_t a_stride, const float* b, int64_t width, int64_t k) {
  constexpr int kRows = Tiles::kRows, kVectors = Tiles::kVectors;
  const int64_t vectors = width / W, tiles = (vectors + kVectors - 1) / kVectors;
  for (int64_t t = 0, begin = 0; t < tiles; ++t) {
    const int64_t end = vectors * (t + 1) / tiles, at = begin * W;
    const int64_t count = end - begin;
    if (count == 1) tile_product<W, kRows, 1, layout, true>(c + at, width, a, a_stride, b + at, width, k);
    if (count == 2) tile_product<W, kRows, 2, layout, true>(c + at, width, a, a_stride, b + at, width, k);
    if constexpr (kVectors >= 4) {
      if (count == 3) tile_product<W, kRows, 3, layout, true>(c + at, width, a, a_stride, b + at, width, k);
      if (count == 4) tile_product<W, kRows, 4, layout, true>(c + at, width, a, a_stride, b + at, width, k);
    }
    begin = end;
  }
}

// panel [head_dim][kWidth] = factor * rows^T; the columns from `count` on are 0.
template <int W, int64_t kWidth = kPanel>
CAIRN_INLINE void pack_transposed(float* panel, const float* rows, int64_t row_stride, int64_t count, int64_t head_dim, float factor) {
  using namespace simd;
  for (int64_t r0 = 0; r0 < kWidth; r0 += W) {
    int64_t d = 0;
    if (r0 >= count) {
      for (; d < head_dim; ++d) store<W>(panel + d * kWidth + r0, Float<W>{});
    } else if (r0 + W <= count) {
      for (; d + W <= head_dim; d += W) {
        Float<W> block[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; ++r) block[r] = load<W>(rows + (r0 + r) * row_stride + d);
        transpose<W>(block);
#pragma GCC unroll 16
        for (int r = 0; r < W; ++r) store<W>(panel + (d + r) * kWidth + r0, block[r] * factor);
      }
    }
    for (; d < head_dim; ++d)
      for (int64_t r = r0; r < r0 + W; ++r) panel[d * kWidth + r] = r < count ? rows[r * row_stride + d] * factor : 0.0f;
  }
}

// to [padded][width] = rows, padded with 0 below `count` and beyond head_dim.
CAIRN_INLINE void pack_rows(float* to, const float* rows, int64_t row_stride, int64_t count, int64_t padded, int64_t head_dim,
                            int64_t width) {
  for (int64_t r = 0; r < padded; ++r) {
    const int64_t used = r < count ? head_dim : 0;
    if (used > 0) std::memcpy(to + r * width, rows + r * row_stride, static_cast<size_t>(used) * sizeof(float));
    std::fill(to + r * width + used, to + (r + 1) * width, 0.0f);
  }
}

// The document ids of one panel of queries.
struct PanelDocuments {
  int32_t ids[kPanel];  // padded with an id that no key has
  int32_t lowest = 0, highest = 0;
};

CAIRN_INLINE PanelDocuments panel_documents(const AttentionProblem& p, int64_t batch, int64_t query, int64_t count) {
  PanelDocuments panel;
  if (p.query_documents == nullptr) return panel;
  const int32_t* ids = p.query_documents + batch * p.q_len + query;
  std::fill(std::copy(ids, ids + count, panel.ids), panel.ids + kPanel, -2);
  const auto [lowest, highest] = std::minmax_element(ids, ids + count);
  panel.lowest = *lowest;
  panel.highest = *highest;
  return panel;
}

// A block of up to kKeyBlock keys against one panel of queries.
struct ScoreBlock {
  int64_t query = 0;                         // the first query
  int64_t queries = 0;                       // queries in the panel; the lanes behind them are padding
  int64_t key = 0;                           // the first key
  int64_t keys = 0;                          // keys worked on, a multiple of 24 (the rest is padding); 0: no pair is seen
  int64_t key_limit = 0;                     // one past the last real key
  bool masked = false;                       // some pair of the block is not seen
  const int32_t* query_documents = nullptr;  // of the panel, or null if they need not be compared
  const int32_t* key_documents = nullptr;    // of the block, or null
};

// The block of keys key .. key_end-1 (at most kKeyBlock of them) as `count` queries from `query` on see it.
CAIRN_INLINE ScoreBlock key_block(const AttentionProblem& p, const PanelDocuments& panel, int64_t batch, int64_t query, int64_t count,
                                  int64_t key, int64_t key_end) {
  ScoreBlock block{.query = query, .queries = count, .key = key, .key_limit = p.k_len};
  const int64_t end = std::min({key_end, key + kKeyBlock, p.keys_seen(query + count)});
  if (end <= key || end <= p.first_key(query)) return block;
  block.keys = round_up(end - key, 24);
  block.masked = key + block.keys > p.k_len || (p.causal && key + block.keys - 1 > query + p.shift) || key < p.first_key(query + count - 1);
  if (p.key_documents != nullptr) {
    const int32_t* ids = p.key_documents + batch * p.k_len;
    const auto [lowest, highest] = std::minmax_element(ids + key, ids + end);
    if (*lowest > panel.highest || *highest < panel.lowest) block.keys = 0;
    if (panel.lowest != panel.highest || *lowest != *highest) {
      block.masked = true;
      block.query_documents = panel.ids;
      block.key_documents = ids + key;
    }
  }
  return block;
}

// scores [keys][kPanel] = keys queries^T for the vectors of queries of which some see a key of their tile; the others stay as
// they are. Both operands are panels.
template <int W>
CAIRN_INLINE void block_scores(const AttentionProblem& p, const ScoreBlock& block, float* scores, const float* key_panels,
                               const float* query_panel) {
  constexpr int kRows = Tile<W>::kScoreRows, kVectors = Tile<W>::kScoreVectors;
  const int64_t vectors = (block.queries + W - 1) / W;
  for (int64_t j = 0; j < block.keys; j += kRows) {
    const float* keys = key_panels + j / kPanel * (kPanel * p.head_dim) + j % kPanel;
    const int64_t first = p.causal ? std::max<int64_t>(block.key + j - p.shift - block.query, 0) / W : 0;
    for (int64_t v = first; v < vectors; v += kVectors) {
      float* to = scores + j * kPanel + v * W;
      const float* queries = query_panel + v * W;
      const int64_t count = std::min<int64_t>(kVectors, vectors - v);
      if (count == 1) tile_product<W, kRows, 1, Left::by_k, false>(to, kPanel, keys, kPanel, queries, kPanel, p.head_dim);
      if (count == 2) tile_product<W, kRows, 2, Left::by_k, false>(to, kPanel, keys, kPanel, queries, kPanel, p.head_dim);
      if constexpr (kVectors >= 3) {
        if (count == 3) tile_product<W, kRows, 3, Left::by_k, false>(to, kPanel, keys, kPanel, queries, kPanel, p.head_dim);
      }
    }
  }
}

// Which lanes of queries i .. i+W-1 (of the panel) see key j (of the block): all bits or none.
template <int W>
CAIRN_INLINE simd::Int<W> seen(const AttentionProblem& p, const ScoreBlock& block, int64_t j, int64_t i,
                               const simd::Int<W>& query_documents) {
  using namespace simd;
  if (block.key + j >= block.key_limit) return Int<W>{};
  Int<W> visible = Int<W>{} == Int<W>{};
  if (p.causal) {  // the query must be at least this far into the panel
    const int64_t first = std::clamp<int64_t>(block.key + j - p.shift - block.query - i, 0, W);
    visible &= lane_indices<W>() >= static_cast<int32_t>(first);
  }
  if (p.window > 0) {  // and at most this far
    const int64_t behind = std::clamp<int64_t>(block.key + j + p.window - p.shift - block.query - i, 0, W);
    visible &= lane_indices<W>() < static_cast<int32_t>(behind);
  }
  if (block.key_documents != nullptr) visible &= query_documents == block.key_documents[j];
  return visible;
}

template <int W>
CAIRN_INLINE simd::Int<W> load_documents(const ScoreBlock& block, int64_t i) {
  simd::Int<W> ids = {};
  if (block.query_documents != nullptr) std::memcpy(&ids, block.query_documents + i, sizeof ids);
  return ids;
}

}  // namespace cairn::kernels

#pragma GCC diagnostic pop
