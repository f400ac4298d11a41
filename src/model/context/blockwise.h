#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"
#include "model/context/form.h"
#include "model/context/split.h"

namespace cairn::model {

// Keys and values of some positions in the message layout, positions first so that blocks can be adjacent in memory:
// both [positions, batch, 2, kv_heads, head_dim]; documents [positions, batch] int64, or undefined.
struct KeyBlock {
  at::Tensor both;
  at::Tensor documents;
  std::vector<Segment> segments;  // the positions of the block's rows
};

// k and v [batch, positions, kv_heads, head_dim] into `both`, and back.
void pack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v);
void unpack_keys(const at::Tensor& both, const at::Tensor& k, const at::Tensor& v);

// Called after each kernel with its floating point operations.
using AfterKernel = std::function<void(double flops)>;

// This rank's queries: their positions and masks.
struct ContextQueries {
  std::vector<Segment> segments;
  int64_t length = 0;                 // of the whole sequence
  kernels::AttentionOptions options;  // scale, causal, window
  at::Tensor documents;               // [batch, local], or undefined
  ContextMistakes mistakes = {};
};

// Attention of this rank's queries over keys that arrive block by block, in fp32 for half precision. One kernel call for each pair of a
// query segment and a key segment that it may see; results are merged by their log-sum-exps. `between` is called after each
// kernel with its floating point operations.
class ContextForward {
 public:
  ContextForward(const at::Tensor& q, ContextQueries queries);
  void add(const KeyBlock& block, const AfterKernel& between);
  // Merges what another rank has computed for the queries at these positions, over keys that this object has not seen: out [batch,
  // positions, heads, head_dim], lse [batch, heads, positions]. The positions lie in one segment of the queries.
  void add_partial(mesh::Interval positions, const at::Tensor& out, const at::Tensor& lse);
  // Overwrites both. A query that saw no key gets out 0 and lse -inf.
  void finish(const at::Tensor& out, const at::Tensor& lse) const;

 private:
  struct Partial {  // of one segment of queries; undefined: no key seen yet
    at::Tensor out, lse;
  };
  void merge(Partial& sum, const Segment& queries, int64_t begin, const Partial& part);

  at::Tensor q_;
  ContextQueries queries_;
  std::vector<Partial> partials_;
  bool skip_merge_ = false;  // of the next part
};

// delta = rowsum(dout out), [batch, positions, heads]: all that a gradient needs of `out`. A stand-in for `out` has these row sums with
// dout, so that kernels compute the gradient without it; finite for every dout.
at::Tensor row_sums(const at::Tensor& dout, const at::Tensor& out);
at::Tensor stand_in_for_out(const at::Tensor& dout, const at::Tensor& row_sums);

// The gradients, over the same blocks in any order.
class ContextBackward {
 public:
  ContextBackward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& out, const at::Tensor& lse, ContextQueries queries);
  // Returns the contribution of this rank's queries to the gradient of the block's keys and values, in fp32 for half precision.
  at::Tensor add(const KeyBlock& block, const AfterKernel& between);
  // Adds what another rank has computed of the gradient of the queries at these positions: dq [batch, positions, heads, head_dim].
  void add_partial(mesh::Interval positions, const at::Tensor& dq);
  void finish(const at::Tensor& dq) const;

 private:
  at::Tensor dout_, q_, out_, lse_, dq_;
  ContextQueries queries_;
};

}  // namespace cairn::model
