// The backward parts of gated linear attention on the CPU (linear_attention.h), one chunk or one head's scan at a time. p.out is dO.
#include "kernels/linear_attention/chunk_tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

// From the last chunk to the first: D before = diag(exp b_C) D after + (scale Q exp(b))^T dO.
struct ScanGradients {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    const int64_t keys = task->key_end - task->key_begin, width = (keys + 15) / 16 * 16, values = p.value_dim;
    float *b = task->scratch, *q = b + p.chunk * width;
    const int64_t head = p.head_of(task->batch, task->head);
    float* gradient = p.scanned + (head * p.key_dim + task->key_begin) * values;
    float sums[kKeysMax] = {};
    bool forgotten = false;
    std::memset(gradient, 0, static_cast<size_t>(keys * values) * sizeof(float));
    for (int64_t n = p.chunks - 1; n >= 0; --n) {
      LinearTask here = *task;
      here.chunk = n;
      const ChunkTokens c(p, here);
      const int64_t block = (head * p.chunks + n) * p.key_dim + task->key_begin;
      std::memcpy(p.state_gradients + block * values, gradient, static_cast<size_t>(keys * values) * sizeof(float));
      load_decays(b, width, p, c, task->key_begin, task->key_end);
      sum_from_first(b, width, c.count);
      load_rows(q, width, p.q, c, task->key_begin, task->key_end, p.scale);
      const float* whole = b + (c.count - 1) * width;
      for (int64_t d = 0; d < keys; ++d) {
        p.gradient_factors[block + d] = forgotten ? 0 : std::exp(sums[d]);
        const float gamma = c.keeps_state() ? std::exp(whole[d]) : 0;
        for (int64_t e = 0; e < values; ++e) gradient[d * values + e] = gamma == 0 ? 0 : gamma * gradient[d * values + e];
        sums[d] += whole[d];
      }
      forgotten = forgotten || !c.keeps_state();
      for (int64_t r = 0; r < c.seeing; ++r) decayed<W>(q + r * width, q + r * width, b + r * width, width);
      small_gemm<W>(keys, values, c.seeing, gradient, values, q, 1, width, p.out.at(c.batch, c.begin, c.head), p.out.token);
    }
    float* decay = p.decay + head * p.key_dim + task->key_begin;
    for (int64_t d = 0; d < keys; ++d) decay[d] = forgotten ? 0 : std::exp(sums[d]);
  }
};

// Adds the gradients of the scores da to dq (of the scaled queries) and dk, both [count, width].
template <int W>
CAIRN_INLINE void scores_backward(float* dq, float* dk, const float* da, const ChunkTokens& c, int64_t chunk, const float* q,
                                  const float* k, const float* g, int64_t width, float* left, float* right, float* made, float* sums) {
  const auto add = [](float* to, Float<W> more) __attribute__((always_inline)) { store<W>(to, load<W>(to) + more); };
  each_halves(
      c.count, chunk, [&](const Halves& h) __attribute__((always_inline)) {
        const float* block = da + h.right * chunk + h.left;
        decay_halves<W>(left, right, h, q, k, g, width);
        std::memset(made, 0, static_cast<size_t>(h.right_count * width) * sizeof(float));
        small_gemm<W>(h.right_count, width, h.half, made, width, block, chunk, 1, left, width);
        each_right<W>(
            h, g, width, [&](int64_t r, int64_t d, Float<W> decay) __attribute__((always_inline)) {
              add(dq + (h.right + r) * width + d, load<W>(made + r * width + d) * decay);
            });
        std::memset(made, 0, static_cast<size_t>(h.half * width) * sizeof(float));
        small_gemm<W>(h.half, width, h.right_count, made, width, block, 1, chunk, right, width);
        each_left<W>(
            h, g, width, [&](int64_t j, int64_t d, Float<W> decay) __attribute__((always_inline)) {
              add(dk + (h.left + j) * width + d, load<W>(made + j * width + d) * decay);
            });
      });
  each_near_pair<W>(
      c.count, g, width, sums, [&](int64_t r, int64_t j, const float* decay) __attribute__((always_inline)) {
        const float score = da[r * chunk + j];
        for (int64_t d = 0; d < width; d += W) {
          const Float<W> weight = decay == nullptr ? Float<W>{} + score : score * simd::exp<W>(load<W>(decay + d));
          add(dq + r * width + d, weight * load<W>(k + j * width + d));
          add(dk + j * width + d, weight * load<W>(q + r * width + d));
        }
      });
}

struct WithinChunkBackward {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    const ChunkTokens c(p, *task);
    const int64_t width = p.padded(), size = p.chunk * width, square = p.chunk * p.chunk;
    float *q = task->scratch, *k = q + size, *g = k + size, *dq = g + size, *dk = dq + size, *left = dk + size, *right = left + size / 2,
          *made = right + size / 2, *a = made + size / 2, *da = a + square, *sums = da + square, *turned = sums + width;
    load_rows(q, width, p.q, c, 0, p.key_dim, p.scale);
    load_rows(k, width, p.k, c, 0, p.key_dim, 1);
    load_decays(g, width, p, c, 0, p.key_dim);
    scores<W>(a, c, p.chunk, q, k, g, width, left, right, made, sums);
    const float *v = p.v.at(c.batch, c.begin, c.head), *dout = p.out.at(c.batch, c.begin, c.head);
    for (int64_t j = 0; j < c.count; j += kBlock) {  // dV = A^T dO
      const int64_t rows = std::min(kBlock, c.count - j);
      for (int64_t i = 0; i < rows; ++i)
        std::memset(p.dv.at(c.batch, c.begin + j + i, c.head), 0, static_cast<size_t>(p.value_dim) * sizeof(float));
      small_gemm<W>(rows, p.value_dim, c.count - j, p.dv.at(c.batch, c.begin + j, c.head), p.dv.token, a + j * p.chunk + j, 1, p.chunk,
                    dout + j * p.out.token, p.out.token);
    }
    transposed(turned, p.chunk, v, p.v.token, c.count, p.value_dim);
    std::memset(da, 0, static_cast<size_t>(square) * sizeof(float));
    for (int64_t r = 0; r < c.count; r += kBlock) {  // dA = dO V^T, where tokens see each other
      const int64_t rows = std::min(kBlock, c.count - r);
      small_gemm<W>(rows, r + rows, p.value_dim, da + r * p.chunk, p.chunk, dout + r * p.out.token, p.out.token, 1, turned, p.chunk);
      for (int64_t i = r; i < r + rows; ++i)
        for (int64_t j = 0; j < r + rows; ++j)
          if (j > i || c.segment[j] != c.segment[i]) da[i * p.chunk + j] = 0;
    }
    std::memset(dq, 0, static_cast<size_t>(2 * size) * sizeof(float));  // dk lies behind it
    scores_backward<W>(dq, dk, da, c, p.chunk, q, k, g, width, left, right, made, sums);
    for (int64_t i = 0; i < c.count; ++i) {
      float *to_q = p.dq.at(c.batch, c.begin + i, c.head), *to_k = p.dk.at(c.batch, c.begin + i, c.head);
      for (int64_t d = 0; d < p.key_dim; ++d) to_q[d] = p.scale * dq[i * width + d];
      std::memcpy(to_k, dk + i * width, static_cast<size_t>(p.key_dim) * sizeof(float));
    }
  }
};

struct EarlierChunksBackward {
  template <int W>
  static CAIRN_INLINE void run(const LinearProblem* problem, const LinearTask* task) {
    const LinearProblem& p = *problem;
    const ChunkTokens c(p, *task);
    const int64_t width = p.padded(), size = p.chunk * width, head = p.head_of(c.batch, c.head), block = head * p.chunks + task->chunk,
                  state_size = p.key_dim * p.value_dim;
    float *b = task->scratch, *after = b + size, *k = after + size, *made = k + size, *combined = made + size,
          *turned = combined + width * p.value_dim;
    load_decays(b, width, p, c, 0, p.key_dim);
    sum_after(after, b, width, c.count);
    sum_from_first(b, width, c.count);
    // turned = state^T [value_dim, width]; made = rows state^T.
    const auto times_turned = [&](const float* state, const float* rows, int64_t row, int64_t count) __attribute__((always_inline)) {
      std::memset(turned, 0, static_cast<size_t>(width * p.value_dim) * sizeof(float));
      transposed(turned, width, state, p.value_dim, p.key_dim, p.value_dim);
      std::memset(made, 0, static_cast<size_t>(count * width) * sizeof(float));
      small_gemm<W>(count, width, p.value_dim, made, width, rows, row, 1, turned, width);
    };
    if (task->chunk > 0 || p.initial != nullptr) {
      const float* state = with_incoming(combined, p.states + block * state_size, p.factors + block * p.key_dim,
                                         p.initial == nullptr ? nullptr : p.initial + head * state_size, p.key_dim, p.value_dim);
      times_turned(state, p.out.at(c.batch, c.begin, c.head), p.out.token, c.seeing);
      for (int64_t r = 0; r < c.seeing; ++r) {
        decayed<W>(made + r * width, made + r * width, b + r * width, width);
        float* to = p.dq.at(c.batch, c.begin + r, c.head);
        for (int64_t d = 0; d < p.key_dim; ++d) to[d] += p.scale * made[r * width + d];
      }
    }
    if (task->chunk + 1 < p.chunks || p.end_gradient != nullptr) {
      const float* gradient =
          with_incoming(combined, p.state_gradients + block * state_size, p.gradient_factors + block * p.key_dim,
                        p.end_gradient == nullptr ? nullptr : p.end_gradient + head * state_size, p.key_dim, p.value_dim);
      const int64_t first = c.remembered, count = c.count - first;
      times_turned(gradient, p.v.at(c.batch, c.begin + first, c.head), p.v.token, count);
      load_rows(k, width, p.k, c, 0, p.key_dim, 1);
      for (int64_t j = 0; j < count; ++j) {
        decayed<W>(made + j * width, made + j * width, after + (first + j) * width, width);
        decayed<W>(k + (first + j) * width, k + (first + j) * width, after + (first + j) * width, width);
        float* to = p.dk.at(c.batch, c.begin + first + j, c.head);
        for (int64_t d = 0; d < p.key_dim; ++d) to[d] += made[j * width + d];
      }
      small_gemm<W>(count, p.value_dim, p.key_dim, p.dv.at(c.batch, c.begin + first, c.head), p.dv.token, k + first * width, width, 1,
                    gradient, p.value_dim);
    }
  }
};

}  // namespace

void scan_gradients_task(const LinearProblem& p, const LinearTask& task) { run<ScanGradients>(&p, &task); }
void within_chunk_backward_task(const LinearProblem& p, const LinearTask& task) { run<WithinChunkBackward>(&p, &task); }
void earlier_chunks_backward_task(const LinearProblem& p, const LinearTask& task) { run<EarlierChunksBackward>(&p, &task); }

void decay_gradient_task(const LinearProblem& p, const LinearTask& task, float* dg, const float* base) {
  float* sums = task.scratch;
  const bool* starts = p.starts == nullptr ? nullptr : p.starts + task.batch * p.length;
  for (int64_t d = 0; d < p.key_dim; ++d) sums[d] = base == nullptr ? 0 : base[p.head_of(task.batch, task.head) * p.key_dim + d];
  for (int64_t t = p.length - 1; t >= 0; --t) {
    const float *q = p.q.at(task.batch, t, task.head), *k = p.k.at(task.batch, t, task.head), *dq = p.dq.at(task.batch, t, task.head),
                *dk = p.dk.at(task.batch, t, task.head);
    float* to = dg + ((task.batch * p.length + t) * p.heads + task.head) * p.key_dim;
    const bool start = starts != nullptr && starts[t];
    for (int64_t d = 0; d < p.key_dim; ++d) {
      sums[d] += q[d] * dq[d] - k[d] * dk[d];
      to[d] = start ? 0 : sums[d];
      if (start) sums[d] = 0;  // the document before is another sum
    }
  }
}

}  // namespace cairn::kernels
