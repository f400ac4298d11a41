#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"
#include "model/context/split.h"

namespace cairn::model {

// Keys and values of some positions as they travel, positions first so that blocks may follow each other in memory:
// both [positions, batch, 2, kv_heads, head_dim]; documents [positions, batch] int64, or undefined.
struct KeyBlock {
  at::Tensor both;
  at::Tensor documents;
  std::vector<Segment> segments;  // where the block's rows are in the sequence
};

// k and v [batch, positions, kv_heads, head_dim] into `both`, and back.
void pack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v);
void unpack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v);

// This rank's queries: where they are, what they may see.
struct ContextQueries {
  std::vector<Segment> segments;
  int64_t length = 0;                 // of the whole sequence
  kernels::AttentionOptions options;  // scale, causal, window
  at::Tensor documents;               // [batch, local], or undefined
};

// Attention of this rank's queries over keys that come block by block; sums are fp32 for bf16 and fp16. Each pair of stretches of which one
// may see the other is one kernel call, and `between` is called after each.
class ContextForward {
 public:
  ContextForward(const at::Tensor& q, ContextQueries queries);
  void add(const KeyBlock& block, const std::function<void()>& between);
  // Overwrites both: out 0 and lse -inf for a query that saw no key.
  void finish(const at::Tensor& out, const at::Tensor& lse) const;

 private:
  struct Partial {  // of one stretch of queries; undefined: no key seen yet
    at::Tensor out, lse;
  };
  void merge(Partial& sum, const Partial& part) const;

  at::Tensor q_;
  ContextQueries queries_;
  std::vector<Partial> partials_;
};

// Its gradients, over the same blocks in any order.
class ContextBackward {
 public:
  ContextBackward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& out, const at::Tensor& lse, ContextQueries queries);
  // What this rank's queries give to the gradient of the block's keys and values: of their shape, in fp32 for bf16 and fp16.
  at::Tensor add(const KeyBlock& block, const std::function<void()>& between);
  void finish(const at::Tensor& dq) const;

 private:
  at::Tensor dout_, q_, out_, lse_, dq_;
  ContextQueries queries_;
};

}  // namespace cairn::model
