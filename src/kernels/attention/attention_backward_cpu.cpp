// The backward pass of CPU attention (Dao et al., FlashAttention, arXiv:2205.14135, algorithm 4). The attention weights are recomputed
// block by block from the log-sum-exp, so nothing but out and lse is kept from the forward pass. With s = scale q k^T:
//   p  = exp(s - lse)                 attention weights (`weights`)
//   dv += p^T dout,  dp = dout v^T
//   delta = rowsum(dout * out)        per query
//   ds = p * (dp - delta)             (`dscores`)
//   dq += scale ds k,  dk += scale ds^T q
// Five matrix products per block of 96 keys and panel of 48 queries.
#include <utility>

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/attention_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

// The scratch memory of a thread. Panels hold transposed rows; `rows` are padded to whole vectors.
struct BackwardScratch {
  int64_t width;
  float *key_panels, *key_rows, *value_panels, *dk, *dv;                        // of all keys of the task
  float *query_panel, *query_rows, *dout_panel, *dout_rows, *dq, *lse, *delta;  // of one panel of queries
  float *weights, *dscores;                                                     // of one block, [key][query]

  BackwardScratch(float* at, const AttentionProblem& p, int64_t vector) : width(round_up(p.head_dim, vector)) {
    const int64_t keys = round_up(p.k_len, kKeyBlock);
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    for (float** of_keys : {&key_panels, &key_rows, &value_panels, &dk, &dv}) *of_keys = take(keys * width);
    for (float** of_queries : {&query_panel, &query_rows, &dout_panel, &dout_rows, &dq}) *of_queries = take(kPanel * width);
    lse = take(kPanel);
    delta = take(kPanel);
    weights = take(kKeyBlock * kPanel);
    dscores = take(kKeyBlock * kPanel);
  }
};

// In place: weights = exp2(scores - lse) where seen, dscores = weights * (dweights - delta).
template <int W>
CAIRN_INLINE void weigh(const AttentionProblem& p, const ScoreBlock& block, BackwardScratch& s) {
  constexpr int kVectors = 3;
  for (int64_t i0 = 0; i0 < block.queries; i0 += kVectors * W) {
    Float<W> lse[kVectors], delta[kVectors];
    Int<W> documents[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      lse[v] = load<W>(s.lse + i0 + v * W);
      delta[v] = load<W>(s.delta + i0 + v * W);
      documents[v] = load_documents<W>(block, i0 + v * W);
    }
    for (int64_t j = 0; j < block.keys; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t i = i0 + v * W;
        float *weight = s.weights + j * kPanel + i, *dscore = s.dscores + j * kPanel + i;
        Float<W> w = exp2<W>(load<W>(weight) - lse[v]);
        Float<W> ds = w * (load<W>(dscore) - delta[v]);
        if (block.masked) {
          const Int<W> visible = seen<W>(p, block, j, i, documents[v]);
          w = visible ? w : Float<W>{};
          ds = visible ? ds : Float<W>{};
        }
        store<W>(weight, w);
        store<W>(dscore, ds);
      }
  }
}

// dv += weights dout and dk += dscores q, for the keys of the block; causally hidden queries are skipped.
template <int W>
CAIRN_INLINE void add_key_gradients(const AttentionProblem& p, const ScoreBlock& block, BackwardScratch& s, int64_t count, int64_t key) {
  constexpr int kRows = Tile<W>::kRows;
  for (int64_t j = 0; j < block.keys; j += kRows) {
    const int64_t first = p.causal ? std::clamp<int64_t>(block.key + j - p.shift - block.query, 0, count) : 0;
    if (first == count) continue;
    const int64_t to = (key + j) * s.width, from = first * s.width;
    row_product<W, Left::by_row>(s.dv + to, s.weights + j * kPanel + first, kPanel, s.dout_rows + from, s.width, count - first);
    row_product<W, Left::by_row>(s.dk + to, s.dscores + j * kPanel + first, kPanel, s.query_rows + from, s.width, count - first);
  }
}

// dq += dscores^T k, for the queries of the panel; causally hidden keys are skipped.
template <int W>
CAIRN_INLINE void add_query_gradients(const AttentionProblem& p, const ScoreBlock& block, BackwardScratch& s, int64_t key) {
  constexpr int kRows = Tile<W>::kRows;
  for (int64_t i = 0; i < block.queries; i += kRows) {
    const int64_t seen_keys = p.causal ? std::clamp<int64_t>(block.query + i + kRows + p.shift - block.key, 0, block.keys) : block.keys;
    if (seen_keys > 0)
      row_product<W, Left::by_k>(s.dq + i * s.width, s.dscores + i, kPanel, s.key_rows + key * s.width, s.width, seen_keys);
  }
}

struct Backward {
  template <int W>
  static CAIRN_INLINE void run(const AttentionProblem* problem, const AttentionTask* task) {
    const AttentionProblem& p = *problem;
    const AttentionTask& t = *task;
    BackwardScratch s(t.scratch, p, W);
    const int64_t group = p.heads / p.kv_heads, keys = t.key_end - t.key_begin;
    for (int64_t j = 0; j < keys; j += kPanel) {
      const int64_t count = std::min<int64_t>(kPanel, keys - j);
      const float* key = p.k.at(t.batch, t.key_begin + j, t.kv_head);
      pack_transposed<W>(s.key_panels + j * p.head_dim, key, p.k.row_stride, count, p.head_dim, 1);
      pack_rows(s.key_rows + j * s.width, key, p.k.row_stride, count, kPanel, p.head_dim, s.width);
      pack_transposed<W>(s.value_panels + j * p.head_dim, p.v.at(t.batch, t.key_begin + j, t.kv_head), p.v.row_stride, count, p.head_dim,
                         1);
    }
    if (t.wants_dkv) {
      std::fill(s.dk, s.dk + round_up(keys, kPanel) * s.width, 0.0f);
      std::fill(s.dv, s.dv + round_up(keys, kPanel) * s.width, 0.0f);
    }
    for (int64_t head = t.kv_head * group; head < (t.kv_head + 1) * group; ++head)
      for (int64_t query = t.query_begin; query < t.query_end; query += kPanel) one_panel<W>(p, t, s, head, query);
    if (!t.wants_dkv) return;
    for (int64_t j = 0; j < keys; ++j) {
      float *dk = p.dk.at(t.batch, t.key_begin + j, t.kv_head), *dv = p.dv.at(t.batch, t.key_begin + j, t.kv_head);
      for (int64_t d = 0; d < p.head_dim; ++d) dk[d] = s.dk[j * s.width + d] * p.scale;
      for (int64_t d = 0; d < p.head_dim; ++d) dv[d] = s.dv[j * s.width + d];
    }
  }

  template <int W>
  static CAIRN_INLINE void one_panel(const AttentionProblem& p, const AttentionTask& t, BackwardScratch& s, int64_t head, int64_t query) {
    const int64_t count = std::min<int64_t>(kPanel, t.query_end - query);
    pack_queries<W>(p, t, s, head, query, count);
    const PanelDocuments documents = panel_documents(p, t.batch, query, count);
    for (int64_t key = 0; key < t.key_end - t.key_begin; key += kKeyBlock) {
      const ScoreBlock block = key_block(p, documents, t.batch, query, count, t.key_begin + key, t.key_end);
      if (block.keys == 0) continue;
      block_scores<W>(p, block, s.weights, s.key_panels + key * p.head_dim, s.query_panel);
      block_scores<W>(p, block, s.dscores, s.value_panels + key * p.head_dim, s.dout_panel);
      weigh<W>(p, block, s);
      if (t.wants_dkv) add_key_gradients<W>(p, block, s, count, key);
      if (t.wants_dq) add_query_gradients<W>(p, block, s, key);
    }
    if (!t.wants_dq) return;
    for (int64_t i = 0; i < count; ++i) {
      float* row = p.dq.at(t.batch, query + i, head);
      for (int64_t d = 0; d < p.head_dim; ++d) row[d] = s.dq[i * s.width + d] * p.scale;
    }
  }

  template <int W>
  static CAIRN_INLINE void pack_queries(const AttentionProblem& p, const AttentionTask& t, BackwardScratch& s, int64_t head, int64_t query,
                                        int64_t count) {
    const float *q = p.q.at(t.batch, query, head), *dout = p.dout.at(t.batch, query, head);
    pack_transposed<W>(s.query_panel, q, p.q.row_stride, count, p.head_dim, p.scale * kLog2e);
    pack_transposed<W>(s.dout_panel, dout, p.dout.row_stride, count, p.head_dim, 1);
    pack_rows(s.query_rows, q, p.q.row_stride, count, kPanel, p.head_dim, s.width);
    pack_rows(s.dout_rows, dout, p.dout.row_stride, count, kPanel, p.head_dim, s.width);
    std::fill(s.dq, s.dq + kPanel * s.width, 0.0f);
    for (int64_t i = 0; i < kPanel; ++i) {
      s.lse[i] = 1e30f;  // a row without keys, or padding: every weight is 0
      s.delta[i] = 0;
      if (i >= count) continue;
      const float lse = p.lse[(t.batch * p.heads + head) * p.q_len + query + i];
      if (lse > -kInfinity) s.lse[i] = lse * kLog2e;
      const float* out = p.out.at(t.batch, query + i, head);
      for (int64_t d = 0; d < p.head_dim; ++d) s.delta[i] += out[d] * s.dout_rows[i * s.width + d];
    }
  }
};

}  // namespace

int64_t attention_backward_scratch(const AttentionProblem& p) {
  const int64_t width = round_up(p.head_dim, 16);
  return 5 * round_up(p.k_len, kKeyBlock) * width + 5 * kPanel * width + 2 * kPanel + 2 * kKeyBlock * kPanel;
}

void attention_backward_task(const AttentionProblem& problem, const AttentionTask& task) { run<Backward>(&problem, &task); }

}  // namespace cairn::kernels
