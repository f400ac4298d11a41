// The forward parts of gated linear attention on the CPU (linear_attention.h), one chunk or one head's scan at a time.
#include "kernels/linear_attention/chunk_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

// Rows [key_begin, key_end) of the states of one head, chunk after chunk.
struct ScanStates {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    const int64_t keys = task->key_end - task->key_begin, width = (keys + 15) / 16 * 16, values = p.value_dim;
    float *g = task->scratch, *after = g + p.chunk * width, *k = after + p.chunk * width;
    const int64_t head = p.head_of(task->batch, task->head);
    float* state = p.scanned + (head * p.key_dim + task->key_begin) * values;
    float* decay = p.decay + head * p.key_dim + task->key_begin;
    float sums[kKeysMax] = {};  // logs of the decay so far: sums, since products underflow
    bool forgotten = false;
    std::memset(state, 0, static_cast<size_t>(keys * values) * sizeof(float));
    const auto left_of = [&](float* to) {
      for (int64_t d = 0; d < keys; ++d) to[d] = forgotten ? 0 : std::exp(sums[d]);
    };
    for (int64_t n = 0; n < p.chunks; ++n) {
      LinearTask here = *task;
      here.chunk = n;
      const ChunkTokens c(p, here);
      std::memcpy(p.states + ((head * p.chunks + n) * p.key_dim + task->key_begin) * values, state,
                  static_cast<size_t>(keys * values) * sizeof(float));
      left_of(p.factors + (head * p.chunks + n) * p.key_dim + task->key_begin);
      load_decays(g, width, p, c, task->key_begin, task->key_end);
      sum_after(after, g, width, c.count);
      load_rows(k, width, p.k, c, task->key_begin, task->key_end, 1);
      for (int64_t d = 0; d < keys; ++d) {
        const float whole = g[d] + after[d], gamma = c.keeps_state() ? std::exp(whole) : 0;
        for (int64_t e = 0; e < values; ++e) state[d * values + e] = gamma == 0 ? 0 : gamma * state[d * values + e];
        sums[d] += whole;
      }
      forgotten = forgotten || !c.keeps_state();
      for (int64_t j = c.remembered; j < c.count; ++j) decayed<W>(k + j * width, k + j * width, after + j * width, width);
      small_gemm<W>(keys, values, c.count - c.remembered, state, values, k + c.remembered * width, 1, width,
                    p.v.at(c.batch, c.begin + c.remembered, c.head), p.v.token);
    }
    left_of(decay);
  }
};

struct WithinChunk {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    const ChunkTokens c(p, *task);
    const int64_t width = p.padded(), size = p.chunk * width;
    float *q = task->scratch, *k = q + size, *g = k + size, *left = g + size, *right = left + size / 2, *turned = right + size / 2;
    float *a = turned + size / 2, *sums = a + p.chunk * p.chunk;
    load_rows(q, width, p.q, c, 0, p.key_dim, p.scale);
    load_rows(k, width, p.k, c, 0, p.key_dim, 1);
    load_decays(g, width, p, c, 0, p.key_dim);
    scores<W>(a, c, p.chunk, q, k, g, width, left, right, turned, sums);
    const float* v = p.v.at(c.batch, c.begin, c.head);
    for (int64_t r = 0; r < c.count; r += kBlock) {
      const int64_t rows = std::min(kBlock, c.count - r);
      for (int64_t i = 0; i < rows; ++i)
        std::memset(p.out.at(c.batch, c.begin + r + i, c.head), 0, static_cast<size_t>(p.value_dim) * sizeof(float));
      small_gemm<W>(rows, p.value_dim, r + rows, p.out.at(c.batch, c.begin + r, c.head), p.out.token, a + r * p.chunk, p.chunk, 1, v,
                    p.v.token);
    }
  }
};

struct EarlierChunks {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    if (task->chunk == 0 && p.initial == nullptr) return;
    const ChunkTokens c(p, *task);
    const int64_t width = p.padded(), head = p.head_of(c.batch, c.head), block = head * p.chunks + task->chunk;
    float *q = task->scratch, *b = q + p.chunk * width, *made = b + p.chunk * width;
    const float* state = with_incoming(made, p.states + block * p.key_dim * p.value_dim, p.factors + block * p.key_dim,
                                       p.initial == nullptr ? nullptr : p.initial + head * p.key_dim * p.value_dim, p.key_dim, p.value_dim);
    load_rows(q, width, p.q, c, 0, p.key_dim, p.scale);
    load_decays(b, width, p, c, 0, p.key_dim);
    sum_from_first(b, width, c.count);
    for (int64_t r = 0; r < c.seeing; ++r) decayed<W>(q + r * width, q + r * width, b + r * width, width);
    small_gemm<W>(c.seeing, p.value_dim, p.key_dim, p.out.at(c.batch, c.begin, c.head), p.out.token, q, width, 1, state, p.value_dim);
  }
};

}  // namespace

int64_t linear_scratch(const LinearProblem& p) {
  const int64_t width = p.padded(), rows = p.chunk * width, state = width * p.value_dim, square = p.chunk * p.chunk;
  return 7 * rows + 2 * square + std::max(p.chunk * p.value_dim, 2 * state) + 64;
}

void scan_states_task(const LinearProblem& p, const LinearTask& task) { run<ScanStates>(&p, &task); }
void within_chunk_task(const LinearProblem& p, const LinearTask& task) { run<WithinChunk>(&p, &task); }
void earlier_chunks_task(const LinearProblem& p, const LinearTask& task) { run<EarlierChunks>(&p, &task); }

}  // namespace cairn::kernels
