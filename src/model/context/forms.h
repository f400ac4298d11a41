// What the two forms of context attention share. Internal to context/attention.cpp.
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

// Which ranks need the block of one coordinate: those that see some of its keys are `first` to `last` steps ahead on the ring. 0 and 0:
// none.
struct ContextRoute {
  int first = 0;
  int last = 0;
};
std::vector<ContextRoute> context_routes(const ContextSplit& split, const kernels::AttentionOptions& options);

void gather_forward(ContextForward& forward, const ContextCall& call);
void ring_forward(ContextForward& forward, const ContextCall& call);
// Return the gradient of this rank's keys and values, in the layout of KeyBlock::both.
at::Tensor gather_backward(ContextBackward& backward, const ContextCall& call);
at::Tensor ring_backward(ContextBackward& backward, const ContextCall& call);

}  // namespace cairn::model
