// What the forms of context attention share: the call as each of them gets it, checked. Of interest to context_attention.cpp alone.
#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "model/context/blockwise.h"
#include "model/context/split.h"

namespace cairn::model {

struct ContextCall {
  comm::Group& group;
  const ContextSplit& split;
  ContextQueries queries;
  at::Tensor k, v;
};

// Whom the block of one coordinate concerns: the others that see some of its keys are `first` to `last` steps ahead along the ring.
// 0 and 0: nobody.
struct ContextRoute {
  int first = 0;
  int last = 0;
};
std::vector<ContextRoute> context_routes(const ContextSplit& split, const kernels::AttentionOptions& options);

void gather_forward(ContextForward& forward, const ContextCall& call);
void ring_forward(ContextForward& forward, const ContextCall& call);
// The gradient of this rank's keys and values, as KeyBlock::both.
at::Tensor gather_backward(ContextBackward& backward, const ContextCall& call);
at::Tensor ring_backward(ContextBackward& backward, const ContextCall& call);

}  // namespace cairn::model
