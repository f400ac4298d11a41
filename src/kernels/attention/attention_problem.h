// One attention call as the CPU kernels see it: sizes, masks, and the address of each tensor's rows.
#pragma once
#include <cstdint>

namespace cairn::kernels {

struct BlockPattern;

// A [batch, length, heads, head_dim] tensor whose last dim is contiguous. Strides count floats.
struct HeadRows {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  float* at(int64_t batch, int64_t row, int64_t head) const { return data + batch * batch_stride + row * row_stride + head * head_stride; }
};

struct AttentionProblem {
  int64_t batch = 0, q_len = 0, k_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = false;
  int64_t shift = 0;                         // causal: query i sees keys j <= i + shift
  int64_t window = 0;                        // if not 0, only keys j > i + shift - window
  const int32_t* query_documents = nullptr;  // [batch, q_len], or null
  const int32_t* key_documents = nullptr;    // [batch, k_len]
  const BlockPattern* pattern = nullptr;     // block-sparse attention (then causal, without a window), or null
  int64_t first_kv_head = 0;                 // pattern: the model's number of this problem's first key head
  int64_t query_offset = 0, key_offset = 0;  // pattern: global positions of the first query and key; shift is their difference
  HeadRows q, k, v, out, dout, dq, dk, dv;   // null where a pass does not use it
  float* lse = nullptr;                      // [batch, heads, q_len]

  // One past the last key that any of the queries before `query_end` sees.
  int64_t keys_seen(int64_t query_end) const {
    if (!causal) return k_len;
    const int64_t end = query_end + shift;
    return end < 0 ? 0 : end < k_len ? end : k_len;
  }
  // The first key that query `query` sees, as far as the window goes.
  int64_t first_key(int64_t query) const {
    const int64_t first = query + shift - window + 1;
    return window == 0 || first < 0 ? 0 : first;
  }
  // The first query that sees key `key`.
  int64_t first_query(int64_t key) const {
    if (!causal) return 0;
    const int64_t first = key - shift;
    return first < 0 ? 0 : first < q_len ? first : q_len;
  }
};

// The work of one thread at a time: the queries [query_begin, query_end) of all query heads that read one key head, against the keys
// [key_begin, key_end), with scratch memory.
struct AttentionTask {
  int64_t batch = 0, kv_head = 0;
  int64_t query_begin = 0, query_end = 0;
  int64_t key_begin = 0, key_end = 0;
  bool wants_dq = true, wants_dkv = true;  // backward: which gradients to write for these ranges
  float* scratch = nullptr;
};

// Floats of scratch a task needs: forward and backward.
int64_t attention_forward_scratch(const AttentionProblem& problem);
int64_t attention_backward_scratch(const AttentionProblem& problem);
void attention_forward_task(const AttentionProblem& problem, const AttentionTask& task);
void attention_backward_task(const AttentionProblem& problem, const AttentionTask& task);

// The same where the problem has a pattern. Ranges of a task begin at multiples of the larger of a pattern block and 64.
int64_t block_forward_scratch(const AttentionProblem& problem);
int64_t block_backward_scratch(const AttentionProblem& problem);
void block_forward_task(const AttentionProblem& problem, const AttentionTask& task);
void block_backward_task(const AttentionProblem& problem, const AttentionTask& task);

// For few queries (decoding): each row of keys is read once, in place. One task is one (batch, head).
void attention_decode_task(const AttentionProblem& problem, int64_t batch, int64_t head, float* scores);

}  // namespace cairn::kernels
