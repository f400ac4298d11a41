// The backward pass of block-sparse CPU attention: attention_backward_cpu.cpp over the blocks of keys that a row of the pattern sees. The
// attention weights are recomputed from the log-sum-exp. With s = scale q k^T, over the pairs that are seen:
//   p  = exp(s - lse)                 attention weights (`weights`)
//   dv += p^T dout,  dp = dout v^T
//   delta = rowsum(dout * out)        per query
//   ds = p * (dp - delta)             (`dscores`)
//   dq += scale ds k,  dk += scale ds^T q
// A task of a whole head computes all three in one walk, five products for each pair of blocks. Where heads are fewer than threads, tasks
// over ranges of queries give dq and tasks over ranges of keys give dk and dv, seven products in all. The stride's columns, which every
// later row sees, then fall into all ranges of keys evenly: no task is much longer than the others, and no sum needs atomics.
#include "kernels/attention/attention_problem.h"
#include "kernels/attention/block_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

struct Scratch {
  int64_t width;
  float *key_strips, *key_rows, *value_strips, *dk, *dv;                        // of all keys of the task
  float *query_panel, *query_rows, *dout_panel, *dout_rows, *dq, *lse, *delta;  // of one panel of queries
  float *weights, *dscores;                                                     // of one group of strips, [key][query]

  Scratch(float* at, const AttentionProblem& p, int64_t vector) : width(round_up(p.head_dim, vector)) {
    const int64_t keys = round_up(p.k_len, kStrip);
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    for (float** of_keys : {&key_strips, &key_rows, &value_strips, &dk, &dv}) *of_keys = take(keys * width);
    for (float** of_queries : {&query_panel, &query_rows, &dout_panel, &dout_rows, &dq}) *of_queries = take(kQueries * width);
    lse = take(kQueries);
    delta = take(kQueries);
    weights = take(kStripsAtOnce * kStrip * kQueries);
    dscores = take(kStripsAtOnce * kStrip * kQueries);
  }
};

// In place: weights = exp2(scores - lse) where seen, dscores = weights * (dweights - delta).
template <int W>
CAIRN_INLINE void weigh(const AttentionProblem& p, const AttentionTask& t, const BlockPanel& panel, const StripGroup& group, Scratch& s) {
  constexpr int kVectors = 2;
  for (int64_t i0 = 0; i0 < panel.count; i0 += kVectors * W) {
    Float<W> lse[kVectors], delta[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      lse[v] = load<W>(s.lse + i0 + v * W);
      delta[v] = load<W>(s.delta + i0 + v * W);
    }
    for (int64_t strip = 0; strip < group.count; ++strip)
      for (int64_t j = 0; j < kStrip; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const int64_t i = i0 + v * W;
          float *weight = s.weights + (strip * kStrip + j) * kQueries + i, *dscore = s.dscores + (strip * kStrip + j) * kQueries + i;
          Float<W> w = exp2<W>(load<W>(weight) - lse[v]);
          Float<W> ds = w * (load<W>(dscore) - delta[v]);
          if (group.strips[strip].masked) {
            const Int<W> visible = lanes_seen<W>(p, t, panel, group.strips[strip], j, i);
            w = visible ? w : Float<W>{};
            ds = visible ? ds : Float<W>{};
          }
          store<W>(weight, w);
          store<W>(dscore, ds);
        }
  }
}

// dv += weights dout and dk += dscores q, for the keys of the group. Queries before the first and behind the last that see a strip are
// skipped.
template <int W>
CAIRN_INLINE void add_key_gradients(const AttentionProblem& p, const AttentionTask& t, const BlockPanel& panel, const StripGroup& group,
                                    Scratch& s) {
  constexpr int kRows = BlockTile<W>::kRows;
  for (int64_t strip = 0; strip < group.count; ++strip) {
    const Strip& keys = group.strips[strip];
    int64_t begin = 0, end = panel.count;
    while (begin < end && !panel.sees(keys, begin)) begin += kStrip;
    while (end > begin && !panel.sees(keys, end - 1)) end = (end - 1) / kStrip * kStrip;
    for (int64_t j = 0; j < kStrip; j += kRows) {
      const int64_t first = std::max(begin, keys.key + j - p.shift - panel.query), count = end - first;
      if (count <= 0) continue;
      const int64_t to = (keys.key - t.key_begin + j) * s.width, from = (strip * kStrip + j) * kQueries + first;
      row_product<W, Left::by_row, BlockTile<W>>(s.dv + to, s.weights + from, kQueries, s.dout_rows + first * s.width, s.width, count);
      row_product<W, Left::by_row, BlockTile<W>>(s.dk + to, s.dscores + from, kQueries, s.query_rows + first * s.width, s.width, count);
    }
  }
}

// dq += dscores^T k, for the queries of the panel.
template <int W>
CAIRN_INLINE void add_query_gradients(const AttentionProblem& p, const AttentionTask& t, const BlockPanel& panel, const StripGroup& group,
                                      Scratch& s) {
  constexpr int kRows = BlockTile<W>::kRows;
  for (int64_t i = 0; i < panel.count; i += kRows)
    strip_runs(
        group, i >> panel.row_shift, [&](const StripRun& run) __attribute__((always_inline)) {
          const int64_t key = group.strips[run.first].key;
          const int64_t keys = std::min<int64_t>(run.count * kStrip, panel.query + i + kRows + p.shift - key);
          if (keys > 0)
            row_product<W, Left::by_k, BlockTile<W>>(s.dq + i * s.width, s.dscores + run.first * kStrip * kQueries + i, kQueries,
                                                     s.key_rows + (key - t.key_begin) * s.width, s.width, keys);
        });
}

struct BlockBackward {
  template <int W>
  static CAIRN_INLINE void run(const AttentionProblem* problem, const AttentionTask* task) {
    const AttentionProblem& p = *problem;
    const AttentionTask& t = *task;
    Scratch s(t.scratch, p, W);
    BlockWalk walk(p, t);
    const int64_t group = p.heads / p.kv_heads, keys = t.key_end - t.key_begin;
    pack_keys<W>(p, t, walk.visited_columns(), s.width,
                 {.key_strips = s.key_strips, .key_rows = s.key_rows, .value_strips = s.value_strips});
    if (t.wants_dkv) {
      std::fill(s.dk, s.dk + round_up(keys, kStrip) * s.width, 0.0f);
      std::fill(s.dv, s.dv + round_up(keys, kStrip) * s.width, 0.0f);
    }
    walk.panels([&](const BlockPanel& panel) __attribute__((always_inline)) {
      if (panel.strips.empty() && !t.wants_dq) return;
      for (int64_t head = t.kv_head * group; head < (t.kv_head + 1) * group; ++head) one_panel<W>(p, t, s, panel, head);
    });
    if (!t.wants_dkv) return;
    for (int64_t j = 0; j < keys; ++j) {
      float *dk = p.dk.at(t.batch, t.key_begin + j, t.kv_head), *dv = p.dv.at(t.batch, t.key_begin + j, t.kv_head);
      for (int64_t d = 0; d < p.head_dim; ++d) dk[d] = s.dk[j * s.width + d] * p.scale;
      for (int64_t d = 0; d < p.head_dim; ++d) dv[d] = s.dv[j * s.width + d];
    }
  }

  template <int W>
  static CAIRN_INLINE void one_panel(const AttentionProblem& p, const AttentionTask& t, Scratch& s, const BlockPanel& panel, int64_t head) {
    pack_queries<W>(p, t, s, panel, head);
    strip_groups(
        panel, [&](const StripGroup& group) __attribute__((always_inline)) {
          group_scores<W>(p, panel, group, s.weights, s.key_strips, t.key_begin, s.query_panel);
          group_scores<W>(p, panel, group, s.dscores, s.value_strips, t.key_begin, s.dout_panel);
          weigh<W>(p, t, panel, group, s);
          if (t.wants_dkv) add_key_gradients<W>(p, t, panel, group, s);
          if (t.wants_dq) add_query_gradients<W>(p, t, panel, group, s);
        });
    if (!t.wants_dq) return;
    for (int64_t i = 0; i < panel.count; ++i) {
      float* row = p.dq.at(t.batch, panel.query + i, head);
      for (int64_t d = 0; d < p.head_dim; ++d) row[d] = s.dq[i * s.width + d] * p.scale;
    }
  }

  template <int W>
  static CAIRN_INLINE void pack_queries(const AttentionProblem& p, const AttentionTask& t, Scratch& s, const BlockPanel& panel,
                                        int64_t head) {
    const float *q = p.q.at(t.batch, panel.query, head), *dout = p.dout.at(t.batch, panel.query, head);
    pack_transposed<W, kQueries>(s.query_panel, q, p.q.row_stride, panel.count, p.head_dim, p.scale * kLog2e);
    pack_transposed<W, kQueries>(s.dout_panel, dout, p.dout.row_stride, panel.count, p.head_dim, 1);
    pack_rows(s.query_rows, q, p.q.row_stride, panel.count, kQueries, p.head_dim, s.width);
    pack_rows(s.dout_rows, dout, p.dout.row_stride, panel.count, kQueries, p.head_dim, s.width);
    std::fill(s.dq, s.dq + kQueries * s.width, 0.0f);
    for (int64_t i = 0; i < kQueries; ++i) {
      s.lse[i] = 1e30f;  // a row without keys, or padding: every weight is 0
      s.delta[i] = 0;
      if (i >= panel.count) continue;
      const float lse = p.lse[(t.batch * p.heads + head) * p.q_len + panel.query + i];
      if (lse > -kInfinity) s.lse[i] = lse * kLog2e;
      const float* out = p.out.at(t.batch, panel.query + i, head);
      for (int64_t d = 0; d < p.head_dim; ++d) s.delta[i] += out[d] * s.dout_rows[i * s.width + d];
    }
  }
};

}  // namespace

int64_t block_backward_scratch(const AttentionProblem& p) {
  const int64_t width = round_up(p.head_dim, 16);
  return 5 * round_up(p.k_len, kStrip) * width + 5 * kQueries * width + 2 * kQueries + 2 * kStripsAtOnce * kStrip * kQueries;
}

void block_backward_task(const AttentionProblem& problem, const AttentionTask& task) { run<BlockBackward>(&problem, &task); }

}  // namespace cairn::kernels
