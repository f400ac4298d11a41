// The forward pass of block-sparse CPU attention (S2-Attention, arXiv:2407.17678): the online softmax of attention_forward_cpu.cpp over the
// blocks of keys that a row of the pattern sees. Blocks that no query of a task sees are neither read nor packed.
//
// A panel of 64 queries keeps the running maximum m (`maxima`), the running sum l (`sums`) and the unnormalised output o (`out`) of each
// query. For six strips of 16 keys with scores s_j = scale q . k_j (hidden ones are -inf):
//   m' = max(m, max_j s_j),  f = exp(m - m')  (`factors`),  p_j = exp(s_j - m')
//   l <- f l + sum_j p_j,    o <- f o + sum_j p_j v_j,   m <- m'
// At the end out = o / l and lse = m + log l. Exponentials are powers of 2: scores carry a factor log2(e).
#include <cmath>

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/block_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

// The scratch memory of a thread.
struct Scratch {
  int64_t width;  // head_dim rounded up to whole vectors
  float *key_strips, *value_rows, *query_panel, *scores, *out, *maxima, *sums, *factors;

  Scratch(float* at, const AttentionProblem& p, int64_t vector) : width(round_up(p.head_dim, vector)) {
    const int64_t keys = round_up(p.k_len, kStrip);
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    key_strips = take(keys * width);
    value_rows = take(keys * width);
    query_panel = take(kQueries * width);
    scores = take(kStripsAtOnce * kStrip * kQueries);
    out = take(kQueries * width);
    maxima = take(kQueries);
    sums = take(kQueries);
    factors = take(kQueries);
  }
};

template <int W>
CAIRN_INLINE void hide_unseen(const AttentionProblem& p, const AttentionTask& t, const BlockPanel& panel, const StripGroup& group,
                              float* scores) {
  const Float<W> hidden = splat<W>(-kInfinity);
  for (int64_t s = 0; s < group.count; ++s) {
    if (!group.strips[s].masked) continue;
    for (int64_t i = 0; i < panel.count; i += W)
      for (int64_t j = 0; j < kStrip; ++j) {
        float* at = scores + (s * kStrip + j) * kQueries + i;
        store<W>(at, lanes_seen<W>(p, t, panel, group.strips[s], j, i) ? load<W>(at) : hidden);
      }
  }
}

// The online softmax step for kVectors vectors of queries from i on: scores become p, maxima and sums are updated, factors becomes f.
template <int W, int kVectors>
CAIRN_INLINE void softmax_columns(int64_t keys, Scratch& s, int64_t i) {
  Float<W> base[kVectors], sum[kVectors] = {};
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) base[v] = load<W>(s.maxima + i + v * W);
  for (int64_t j = 0; j < keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) base[v] = maximum<W>(base[v], load<W>(s.scores + j * kQueries + i + v * W));
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = i + v * W;
    const Float<W> old = load<W>(s.maxima + at);
    store<W>(s.maxima + at, base[v]);
    base[v] = base[v] > -kInfinity ? base[v] : Float<W>{};  // nothing seen yet: keep -inf - base from being nan
    store<W>(s.factors + at, exp2<W>(old - base[v]));
  }
  for (int64_t j = 0; j < keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = s.scores + j * kQueries + i + v * W;
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
CAIRN_INLINE void online_softmax(const BlockPanel& panel, const StripGroup& group, Scratch& s) {
  constexpr int kTogether = kQueries / W >= 4 ? 4 : kQueries / W;  // together they hide each other's latencies
  int64_t i = 0;
  for (; i + (kTogether - 1) * W < panel.count; i += kTogether * W) softmax_columns<W, kTogether>(group.keys(), s, i);
  for (; i < panel.count; i += W) softmax_columns<W, 1>(group.keys(), s, i);
}

// out = out * factor + weights^T values.
template <int W>
CAIRN_INLINE void add_values(const AttentionProblem& p, const BlockPanel& panel, const StripGroup& group, Scratch& s, int64_t first_key) {
  constexpr int kRows = BlockTile<W>::kRows;
  for (int64_t i = 0; i < panel.count; i += kRows) {
    for (int64_t r = i; r < i + kRows; ++r) {
      const float factor = s.factors[r];
      if (factor == 1) continue;  // the maximum has not moved, as is usual after a few blocks
      for (int64_t d = 0; d < s.width; d += W) store<W>(s.out + r * s.width + d, load<W>(s.out + r * s.width + d) * factor);
    }
    strip_runs(
        group, i >> panel.row_shift, [&](const StripRun& run) __attribute__((always_inline)) {
          const int64_t key = group.strips[run.first].key;
          const int64_t keys = std::min<int64_t>(run.count * kStrip, panel.query + i + kRows + p.shift - key);
          if (keys > 0)
            row_product<W, Left::by_k, BlockTile<W>>(s.out + i * s.width, s.scores + run.first * kStrip * kQueries + i, kQueries,
                                                     s.value_rows + (key - first_key) * s.width, s.width, keys);
        });
  }
}

struct BlockForward {
  template <int W>
  static CAIRN_INLINE void run(const AttentionProblem* problem, const AttentionTask* task) {
    const AttentionProblem& p = *problem;
    const AttentionTask& t = *task;
    Scratch s(t.scratch, p, W);
    BlockWalk walk(p, t);
    pack_keys<W>(p, t, walk.visited_columns(), s.width, {.key_strips = s.key_strips, .value_rows = s.value_rows});
    const int64_t group = p.heads / p.kv_heads;
    walk.panels([&](const BlockPanel& panel) __attribute__((always_inline)) {
      for (int64_t head = t.kv_head * group; head < (t.kv_head + 1) * group; ++head) one_panel<W>(p, t, s, panel, head);
    });
  }

  template <int W>
  static CAIRN_INLINE void one_panel(const AttentionProblem& p, const AttentionTask& t, Scratch& s, const BlockPanel& panel, int64_t head) {
    pack_transposed<W, kQueries>(s.query_panel, p.q.at(t.batch, panel.query, head), p.q.row_stride, panel.count, p.head_dim,
                                 p.scale * kLog2e);
    std::fill(s.out, s.out + kQueries * s.width, 0.0f);
    std::fill(s.maxima, s.maxima + kQueries, -kInfinity);
    std::fill(s.sums, s.sums + kQueries, 0.0f);
    std::fill(s.factors, s.factors + kQueries, 0.0f);
    strip_groups(
        panel, [&](const StripGroup& group) __attribute__((always_inline)) {
          group_scores<W>(p, panel, group, s.scores, s.key_strips, t.key_begin, s.query_panel);
          hide_unseen<W>(p, t, panel, group, s.scores);
          online_softmax<W>(panel, group, s);
          add_values<W>(p, panel, group, s, t.key_begin);
        });
    for (int64_t i = 0; i < panel.count; ++i) {
      const float inverse = s.sums[i] > 0 ? 1 / s.sums[i] : 0.0f;
      float* row = p.out.at(t.batch, panel.query + i, head);
      for (int64_t d = 0; d < p.head_dim; ++d) row[d] = s.out[i * s.width + d] * inverse;
      p.lse[(t.batch * p.heads + head) * p.q_len + panel.query + i] =
          s.sums[i] > 0 ? (s.maxima[i] + std::log2(s.sums[i])) * kLn2 : -kInfinity;
    }
  }
};

}  // namespace

int64_t block_forward_scratch(const AttentionProblem& p) {
  const int64_t width = round_up(p.head_dim, 16);
  return 2 * round_up(p.k_len, kStrip) * width + 2 * kQueries * width + kStripsAtOnce * kStrip * kQueries + 3 * kQueries;
}

void block_forward_task(const AttentionProblem& problem, const AttentionTask& task) { run<BlockForward>(&problem, &task); }

}  // namespace cairn::kernels
