// The forward pass of CPU attention: FlashAttention (Dao et al., arXiv:2205.14135, algorithm 1) with an online softmax (Milakov and
// Gimelshein, arXiv:1805.02867). The scores of a row are never all in memory.
//
// A panel of 48 queries goes over blocks of 96 keys. Per query it keeps the running maximum m (`maxima`), the running sum l (`sums`) and
// the unnormalised output o (`out`). For a block with scores s_j = scale q . k_j (masked ones are -inf):
//   m' = max(m, max_j s_j),  f = exp(m - m')  (`factors`),  p_j = exp(s_j - m')
//   l <- f l + sum_j p_j,    o <- f o + sum_j p_j v_j,   m <- m'
// At the end out = o / l and lse = m + log l. Exponentials are powers of 2: scores carry a factor log2(e).
#include <cmath>

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/attention_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

// The scratch memory of a thread. Panels of keys hold k^T; `values` holds rows of v.
struct ForwardScratch {
  int64_t width;  // head_dim rounded up to whole vectors
  float *key_panels, *values, *query_panel, *scores, *out, *maxima, *sums, *factors;

  ForwardScratch(float* at, const AttentionProblem& p, int64_t vector) : width(round_up(p.head_dim, vector)) {
    const int64_t keys = round_up(p.k_len, kKeyBlock);
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    key_panels = take(keys * width);
    values = take(keys * width);
    query_panel = take(kPanel * width);
    scores = take(kKeyBlock * kPanel);
    out = take(kPanel * width);
    maxima = take(kPanel);
    sums = take(kPanel);
    factors = take(kPanel);
  }
};

template <int W>
CAIRN_INLINE void mask_scores(const AttentionProblem& p, const ScoreBlock& block, float* scores) {
  const Float<W> hidden = splat<W>(-kInfinity);
  // The first key that some query may not see: one after the first query, or padding.
  const int64_t ordered = p.causal ? block.query + p.shift - block.key + 1 : block.keys;
  const int64_t first = block.key_documents != nullptr || p.window > 0
                            ? 0
                            : std::clamp<int64_t>(std::min(ordered, block.key_limit - block.key), 0, block.keys);
  for (int64_t i = 0; i < block.queries; i += W) {
    const Int<W> documents = load_documents<W>(block, i);
    for (int64_t j = first; j < block.keys; ++j) {
      float* at = scores + j * kPanel + i;
      store<W>(at, seen<W>(p, block, j, i, documents) ? load<W>(at) : hidden);
    }
  }
}

// The online softmax step for kVectors vectors of queries from i on: scores become p, maxima and sums are updated, factors becomes f.
template <int W, int kVectors>
CAIRN_INLINE void softmax_columns(const ScoreBlock& block, ForwardScratch& s, int64_t i) {
  Float<W> base[kVectors], sum[kVectors] = {};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) base[v] = load<W>(s.maxima + i + v * W);
  for (int64_t j = 0; j < block.keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) base[v] = maximum<W>(base[v], load<W>(s.scores + j * kPanel + i + v * W));
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = i + v * W;
    const Float<W> old = load<W>(s.maxima + at);
    store<W>(s.maxima + at, base[v]);
    base[v] = base[v] > -kInfinity ? base[v] : Float<W>{};  // nothing seen yet: keep -inf - base from being nan
    store<W>(s.factors + at, exp2<W>(old - base[v]));
  }
  for (int64_t j = 0; j < block.keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = s.scores + j * kPanel + i + v * W;
      const Float<W> weight = exp2<W>(load<W>(at) - base[v]);
      store<W>(at, weight);
      sum[v] += weight;
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = i + v * W;
    store<W>(s.sums + at, load<W>(s.sums + at) * load<W>(s.factors + at) + sum[v]);
  }
}

template <int W>
CAIRN_INLINE void online_softmax(const ScoreBlock& block, ForwardScratch& s) {
  int64_t i = 0;
  for (; i + 2 * W < block.queries; i += 3 * W) softmax_columns<W, 3>(block, s, i);  // three together hide each other's latencies
  for (; i < block.queries; i += W) softmax_columns<W, 1>(block, s, i);
}

// out = out * factor + weights^T values.
template <int W>
CAIRN_INLINE void add_values(const AttentionProblem& p, const ScoreBlock& block, ForwardScratch& s, const float* values) {
  constexpr int kRows = Tile<W>::kRows;
  for (int64_t i = 0; i < block.queries; i += kRows) {
    for (int64_t r = i; r < i + kRows; ++r) {
      const float factor = s.factors[r];
      for (int64_t d = 0; d < s.width; d += W) store<W>(s.out + r * s.width + d, load<W>(s.out + r * s.width + d) * factor);
    }
    const int64_t seen_keys = p.causal ? std::clamp<int64_t>(block.query + i + kRows + p.shift - block.key, 0, block.keys) : block.keys;
    if (seen_keys > 0) row_product<W, Left::by_k>(s.out + i * s.width, s.scores + i, kPanel, values, s.width, seen_keys);
  }
}

template <int W>
CAIRN_INLINE void write_panel(const AttentionProblem& p, const ForwardScratch& s, int64_t batch, int64_t head, int64_t query,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = s.sums[i] > 0 ? 1 / s.sums[i] : 0.0f;
    float* row = p.out.at(batch, query + i, head);
    for (int64_t d = 0; d < p.head_dim; ++d) row[d] = s.out[i * s.width + d] * inverse;
    p.lse[(batch * p.heads + head) * p.q_len + query + i] = s.sums[i] > 0 ? (s.maxima[i] + std::log2(s.sums[i])) * kLn2 : -kInfinity;
  }
}

struct Forward {
  template <int W>
  static CAIRN_INLINE void run(const AttentionProblem* problem, const AttentionTask* task) {
    const AttentionProblem& p = *problem;
    const AttentionTask& t = *task;
    ForwardScratch s(t.scratch, p, W);
    const int64_t group = p.heads / p.kv_heads, keys = p.keys_seen(t.query_end);
    for (int64_t j = 0; j < keys; j += kPanel) {
      const int64_t count = std::min<int64_t>(kPanel, p.k_len - j);
      pack_transposed<W>(s.key_panels + j * p.head_dim, p.k.at(t.batch, j, t.kv_head), p.k.row_stride, count, p.head_dim, 1);
      pack_rows(s.values + j * s.width, p.v.at(t.batch, j, t.kv_head), p.v.row_stride, count, kPanel, p.head_dim, s.width);
    }
    for (int64_t head = t.kv_head * group; head < (t.kv_head + 1) * group; ++head)
      for (int64_t query = t.query_begin; query < t.query_end; query += kPanel) one_panel<W>(p, t, s, head, query);
  }

  template <int W>
  static CAIRN_INLINE void one_panel(const AttentionProblem& p, const AttentionTask& t, ForwardScratch& s, int64_t head, int64_t query) {
    const int64_t count = std::min<int64_t>(kPanel, t.query_end - query);
    pack_transposed<W>(s.query_panel, p.q.at(t.batch, query, head), p.q.row_stride, count, p.head_dim, p.scale * kLog2e);
    std::fill(s.out, s.out + kPanel * s.width, 0.0f);
    std::fill(s.maxima, s.maxima + kPanel, -kInfinity);
    std::fill(s.sums, s.sums + kPanel, 0.0f);
    std::fill(s.factors, s.factors + kPanel, 0.0f);
    const PanelDocuments documents = panel_documents(p, t.batch, query, count);
    for (int64_t key = 0; key < p.k_len; key += kKeyBlock) {
      const ScoreBlock block = key_block(p, documents, t.batch, query, count, key, p.k_len);
      if (block.keys == 0) continue;
      block_scores<W>(p, block, s.scores, s.key_panels + block.key * p.head_dim, s.query_panel);
      if (block.masked) mask_scores<W>(p, block, s.scores);
      online_softmax<W>(block, s);
      add_values<W>(p, block, s, s.values + block.key * s.width);
    }
    write_panel<W>(p, s, t.batch, head, query, count);
  }
};

}  // namespace

int64_t attention_forward_scratch(const AttentionProblem& p) {
  const int64_t width = round_up(p.head_dim, 16);
  return 2 * round_up(p.k_len, kKeyBlock) * width + 2 * kPanel * width + kKeyBlock * kPanel + 3 * kPanel;
}

void attention_forward_task(const AttentionProblem& problem, const AttentionTask& task) { run<Forward>(&problem, &task); }

}  // namespace cairn::kernels
