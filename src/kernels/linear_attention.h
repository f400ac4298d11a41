// Gated linear attention (GLA, arXiv:2312.06635) in chunks, in parts between which the ranks of a sequence may exchange states.
//
//   S_t = diag(exp g_t) S_{t-1} + k_t v_t^T        a state [key_dim, value_dim] per head; S = 0 before a document's first token
//   o_t = scale S_t^T q_t
//
// In a chunk of C tokens let b_r = g_1 + ... + g_r. What a chunk adds to the state, and what its tokens read from the state before it:
//
//   S_end = diag(exp b_C) S + Kt^T V,   Kt = K exp(b_C - b)
//   O     = A V + scale Qt S,           Qt = Q exp(b),   A_rj = scale sum_d q_rd k_jd exp(b_rd - b_jd) for j <= r
//
// A is made by halves: for r in the right half of a block and j in its left half, with m the last token of the left half,
// exp(b_r - b_j) = exp(b_r - b_m) exp(b_m - b_j), a product of two factors of which neither exceeds 1. So nothing overflows, however strong
// the decay, and each half is one matrix product. exp(-b) over a chunk would overflow.
#pragma once
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// One layer's queries, keys, values and gates. The last dim of q, k, v is contiguous, other strides are free.
struct LinearAttention {
  at::Tensor q, k;            // [batch, length, heads, key_dim]
  at::Tensor v;               // [batch, length, heads, value_dim]
  at::Tensor log_decay = {};  // g <= 0, [batch, length, heads, key_dim], fp32 (fp64 with an fp64 q); may be expanded from fewer dims, as a
                              // decay per head or per token is; undefined: no decay
  at::Tensor starts = {};     // bool [batch, length]: a document starts here, and the state before it is forgotten; undefined: none
  double scale = 0;           // 0: 1 / sqrt(key_dim)
  int64_t chunk = 64;         // a power of two
};

// States as if the state before the first token were zero. All are fp32, or fp64 with an fp64 q.
struct LinearStates {
  at::Tensor before;   // [batch, heads, chunks, key_dim, value_dim]: before each chunk
  at::Tensor factors;  // [batch, heads, chunks, key_dim]: what is left there of a state before the first token; 0 after a document's start
  at::Tensor end;      // [batch, heads, key_dim, value_dim]: after the last token
  at::Tensor decay;    // [batch, heads, key_dim]: what is left there of a state before the first token
};
LinearStates linear_states(const LinearAttention& on);

// Overwrites out [batch, length, heads, value_dim] with what tokens read within their own chunk. It needs no state, so it runs while states
// travel: `between`, where given, is called now and then on the calling thread.
void attend_within_chunks(const at::Tensor& out, const LinearAttention& on, const std::function<void()>& between = {});

// Adds what tokens read from earlier chunks, and from `initial`, the state before the first token (undefined: zero).
void attend_earlier_chunks(const at::Tensor& out, const LinearAttention& on, const LinearStates& states, const at::Tensor& initial);

// Gradients with respect to states, as if that of the state after the last token were zero.
struct LinearStateGradients {
  at::Tensor after;    // [batch, heads, chunks, key_dim, value_dim]: of the state after each chunk
  at::Tensor factors;  // [batch, heads, chunks, key_dim]: what arrives there of a gradient after the last token
  at::Tensor begin;    // [batch, heads, key_dim, value_dim]: of the state before the first token
  at::Tensor decay;    // [batch, heads, key_dim]: what arrives there of a gradient after the last token, as LinearStates::decay
};
LinearStateGradients linear_state_gradients(const LinearAttention& on, const at::Tensor& dout);

// The gradients of the two functions above, for dq, dk, dv (and dout) in the shapes of q, k, v. The first overwrites, the second adds;
// `end` is the gradient of the state after the last token (undefined: zero).
struct LinearGradients {
  at::Tensor q, k, v;
};
void attend_within_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                   const std::function<void()>& between = {});
void attend_earlier_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                    const LinearStates& states, const at::Tensor& initial, const LinearStateGradients& gradients,
                                    const at::Tensor& end);

// The gradient of g from the complete dq and dk: within a document
//   dg_t = base + sum over j >= t of (q_j dq_j - k_j dk_j),
// since rowsum(S_t D_t) is both dg_t + k_t dk_t and q_t dq_t + dg_{t+1}. `base` [batch, heads, key_dim] = rowsum(S D) after the last token
// (linear_gate_base), for the last document; undefined: zero. Overwrites dg [batch, length, heads, key_dim], fp32 or fp64.
void linear_decay_gradient(const at::Tensor& dg, const LinearAttention& on, const LinearGradients& gradients, const at::Tensor& base);
// rowsum over value_dim of the state after the last token times its gradient. Undefined where `end` is.
at::Tensor linear_gate_base(const LinearStates& states, const at::Tensor& initial, const at::Tensor& end);

namespace reference {
// The recurrence token by token, differentiable: out [batch, length, heads, value_dim] and the state after the last token.
struct LinearOutput {
  at::Tensor out, end;
};
LinearOutput linear_attention(const LinearAttention& on, const at::Tensor& initial = {});
}  // namespace reference

}  // namespace cairn::kernels
