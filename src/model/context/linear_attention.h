#pragma once
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "kernels/linear_attention.h"
#include "model/context/linear_form.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// A rank's place in the sequence is its index in the group. Slices are contiguous, of any length each.
struct LinearContext {
  comm::Group* group = nullptr;  // null: this rank has the whole sequence
  LinearForm form = LinearForm::zeco;
  int64_t blocks = 0;                  // zeco: pipelined blocks; 0: by the links
  StateDtype dtype = StateDtype::fp32;
  std::function<void()> between = {};  // called now and then within chunks; empty: drives the group's messages
};

// Where documents start, bool [batch, local], from the ids [batch, local] int64 of this rank's tokens and those [batch] of the token before
// its first one. The sequence's first token starts no document: there is no state before it, and `before` is undefined.
at::Tensor document_starts(const at::Tensor& documents, const at::Tensor& before);

// The states at a rank's borders, [batch, heads, key_dim, value_dim]. All ranks of the group call the two functions below together.
struct LinearBorders {
  at::Tensor initial;  // before its first token; undefined: zero. Backward needs it.
  at::Tensor end;      // after its last token
};
// Overwrites out [batch, local, heads, value_dim].
LinearBorders linear_attention(const at::Tensor& out, const kernels::LinearAttention& on, const LinearContext& context);
// Overwrites the gradients of q, k, v, and of the log decays where dg is defined [batch, local, heads, key_dim].
void linear_attention_backward(const kernels::LinearGradients& into, const at::Tensor& dg, const kernels::LinearAttention& on,
                               const at::Tensor& dout, const at::Tensor& initial, const LinearContext& context);

}  // namespace cairn::model
