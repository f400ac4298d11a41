// Gated linear attention as pointers and sizes, for the fp32 kernels of the CPU, and the tasks into which they are cut. Internal to
// kernels/linear_attention.
#pragma once
#include <algorithm>
#include <cstdint>

namespace cairn::kernels {

inline constexpr int64_t kChunkMax = 256;
inline constexpr int64_t kKeysMax = 64;  // key rows of one scan task, at most

// Rows [batch, token, head] whose elements are contiguous.
struct LinearRows {
  float* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;  // strides
  float* at(int64_t b, int64_t t, int64_t h) const { return data + b * batch + t * token + h * head; }
};

struct LinearProblem {
  int64_t batch = 0, length = 0, heads = 0, key_dim = 0, value_dim = 0, chunk = 0, chunks = 0;
  float scale = 1;
  LinearRows q, k, v, g;         // g.data null: no decay
  int64_t g_element = 1;         // stride of g's last dim: 0 where one decay serves a head
  const bool* starts = nullptr;  // [batch, length]; null: none
  LinearRows out;                // or its gradient
  LinearRows dq, dk, dv;
  // [batch, heads, chunks, key_dim, value_dim] and [batch, heads, chunks, key_dim].
  float *states = nullptr, *factors = nullptr;
  float *state_gradients = nullptr, *gradient_factors = nullptr;
  // [batch, heads, key_dim, value_dim] and [batch, heads, key_dim]: the state that comes in (forward: from before, backward: from after;
  // null: zero), and the results of a scan.
  const float *initial = nullptr, *end_gradient = nullptr;
  float *scanned = nullptr, *decay = nullptr;

  int64_t padded() const { return (key_dim + 15) / 16 * 16; }  // floats of a key row in scratch: whole vectors, the rest is zero
  int64_t head_of(int64_t b, int64_t h) const { return b * heads + h; }
};

// One chunk of one head, or the rows [key_begin, key_end) of one head's states through all chunks.
struct LinearTask {
  int64_t batch = 0, head = 0, chunk = 0;
  int64_t key_begin = 0, key_end = 0;
  float* scratch = nullptr;
};

int64_t linear_scratch(const LinearProblem& p);  // floats that any task below needs

void scan_states_task(const LinearProblem& p, const LinearTask& task);
void within_chunk_task(const LinearProblem& p, const LinearTask& task);
void earlier_chunks_task(const LinearProblem& p, const LinearTask& task);
void scan_gradients_task(const LinearProblem& p, const LinearTask& task);
void within_chunk_backward_task(const LinearProblem& p, const LinearTask& task);
void earlier_chunks_backward_task(const LinearProblem& p, const LinearTask& task);
// dg [batch, length, heads, key_dim], contiguous, of one head; base [batch, heads, key_dim] or null.
void decay_gradient_task(const LinearProblem& p, const LinearTask& task, float* dg, const float* base);

}  // namespace cairn::kernels
