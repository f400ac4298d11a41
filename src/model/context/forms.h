// What the forms of context attention share. Internal to this folder.
#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "model/context/blockwise.h"
#include "model/context/form.h"
#include "model/context/split.h"

namespace cairn::model {

struct ContextCall {
  comm::Group& group;
  const ContextSplit& split;        // of the keys
  const ContextSplit& query_split;  // the same, but over a cache of keys
  ContextQueries queries;
  at::Tensor k, v;
  const AfterKernel& after_kernel;

  // Between two kernels messages move.
  void progress(double flops) const {
    if (after_kernel) after_kernel(flops);
    group.progress();
  }
};

// Which ranks need the block of one coordinate: those that see some of its keys are `first` to `last` steps from it in a direction of the
// ring. 0 and 0: none.
struct ContextRoute {
  int first = 0;
  int last = 0;
};

// The part of each coordinate's keys that goes round the ring one way.
struct KeyPart {
  ContextSplit keys;                // of each coordinate: the positions of this part
  std::vector<int64_t> first_rows;  // of each coordinate: where the part begins in its storage
  int direction = 1;                // 1: to the next coordinate; -1: to the one before
};
// ring: one part, forwards. ring_both_ways: the first half of each coordinate's rows forwards, the others backwards; in the zigzag split
// the others are the later chunk, which few ranks see.
std::vector<KeyPart> key_parts(const ContextSplit& split, bool both_ways);
std::vector<ContextRoute> context_routes(const ContextSplit& queries, const KeyPart& part, const kernels::AttentionOptions& options);

// What token_ring sends of one coordinate's queries, by distance against the order of coordinates (index 0 is not used): for each segment
// of the queries, the positions that see some key at that distance (`seeing`), and those that some coordinate from there on needs
// (`carried`). Empty where there are none; `last` is the greatest distance with any.
struct QueryRoute {
  std::vector<std::vector<mesh::Interval>> seeing, carried;
  int last = 0;
};
std::vector<QueryRoute> query_routes(const ContextSplit& queries, const ContextSplit& keys, const kernels::AttentionOptions& options);
int64_t rows_of(const std::vector<mesh::Interval>& intervals);

// The key heads that belong to the query heads of one of `ranks` ranks; where ranks have several key heads that their queries share
// unequally, each query head gets its key head anew (`repeated`).
struct UlyssesHeads {
  int64_t queries = 0, first_query = 0;
  int64_t keys = 0, first_key = 0;
  bool repeated = false;
};
UlyssesHeads ulysses_heads(int64_t heads, int64_t kv_heads, int64_t ranks, int64_t rank);
// The split among teams of `ulysses` neighbours: a team has the positions of its members, one after the other.
ContextSplit team_split(const ContextSplit& split, int64_t ulysses);

void gather_forward(ContextForward& forward, const ContextCall& call);
void ring_forward(ContextForward& forward, const ContextCall& call, bool both_ways);
void token_ring_forward(ContextForward& forward, const ContextCall& call, const at::Tensor& q);
// Return the gradient of this rank's keys and values, in the layout of KeyBlock::both.
at::Tensor gather_backward(ContextBackward& backward, const ContextCall& call);
at::Tensor ring_backward(ContextBackward& backward, const ContextCall& call, bool both_ways);

// The tensors of a gradient, of this rank's positions.
struct ContextGradientInputs {
  at::Tensor dout, q, out, lse;
};
at::Tensor token_ring_backward(ContextBackward& backward, const ContextCall& call, const ContextGradientInputs& inputs);

// Exchange heads for positions among the team, attend as the method says among teams, and exchange back.
void ulysses_forward(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const ContextCall& call,
                     const ContextMethod& method);
void ulysses_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const ContextGradientInputs& inputs,
                      const ContextCall& call, const ContextMethod& method);

}  // namespace cairn::model
