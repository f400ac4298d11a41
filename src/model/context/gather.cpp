// Context attention by all-gather: every rank gets the keys and values of the whole sequence, in global order.
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

// The positions of gathered rows: coordinate after coordinate, in storage order.
std::vector<Segment> gathered_segments(const ContextSplit& split) {
  ContextSplit one{split.length, {{}}};
  for (const std::vector<mesh::Interval>& pieces : split.pieces) one.pieces[0].insert(one.pieces[0].end(), pieces.begin(), pieces.end());
  return segments(one, 0);
}

// Sort rows from gathered order to sequence order, and back; nothing is copied where both are the same.
at::Tensor in_global_order(const at::Tensor& gathered, const ContextSplit& split) {
  const std::vector<Segment> order = gathered_segments(split);
  if (order.size() <= 1) return gathered;
  const at::Tensor sorted = at::empty_like(gathered);
  for (const auto& [positions, row] : order)
    sorted.narrow(0, positions.begin, positions.length()).copy_(gathered.narrow(0, row, positions.length()));
  return sorted;
}

at::Tensor in_travelling_order(const at::Tensor& sorted, const ContextSplit& split) {
  const std::vector<Segment> order = gathered_segments(split);
  if (order.size() <= 1) return sorted;
  const at::Tensor to_go = at::empty_like(sorted);
  for (const auto& [positions, row] : order)
    to_go.narrow(0, row, positions.length()).copy_(sorted.narrow(0, positions.begin, positions.length()));
  return to_go;
}

// The elements of each coordinate, with `each` elements per position.
std::vector<int64_t> element_counts(const ContextSplit& split, int64_t each) {
  std::vector<int64_t> counts;
  for (int c = 0; c < static_cast<int>(split.pieces.size()); ++c) counts.push_back(held(split, c) * each);
  return counts;
}

KeyBlock gathered_keys(const ContextCall& call) {
  const int64_t batch = call.k.size(0), local = call.k.size(1), kv_heads = call.k.size(2), head_dim = call.k.size(3);
  const at::Tensor mine = at::empty({local, batch, 2, kv_heads, head_dim}, call.k.options());
  pack_keys(mine, call.k, call.v);
  KeyBlock whole{at::empty({call.split.length, batch, 2, kv_heads, head_dim}, mine.options()), {}, {{{0, call.split.length}, 0}}};
  comm::Work keys = call.group.all_gather(whole.both, mine, {comm::Purpose::activation, "keys and values"},
                                          element_counts(call.split, batch * 2 * kv_heads * head_dim));
  if (call.queries.documents.defined()) {
    const at::Tensor documents = call.queries.documents.transpose(0, 1).contiguous();
    whole.documents = at::empty({call.split.length, batch}, documents.options());
    call.group.all_gather(whole.documents, documents, {comm::Purpose::activation, "documents"}, element_counts(call.split, batch)).wait();
    whole.documents = in_global_order(whole.documents, call.split);
  }
  keys.wait();
  whole.both = in_global_order(whole.both, call.split);
  return whole;
}

}  // namespace

void gather_forward(ContextForward& forward, const ContextCall& call) {
  forward.add(gathered_keys(call), [&](double flops) { call.progress(flops); });
}

at::Tensor gather_backward(ContextBackward& backward, const ContextCall& call) {
  const at::Tensor whole = in_travelling_order(backward.add(gathered_keys(call), [&](double flops) { call.progress(flops); }), call.split);
  const at::Tensor mine = at::empty({call.k.size(1), whole.size(1), 2, whole.size(3), whole.size(4)}, whole.options());
  call.group
      .reduce_scatter(mine, whole, comm::Reduce::sum, {comm::Purpose::activation, "gradients of keys and values"},
                      element_counts(call.split, whole.stride(0)))
      .wait();
  return mine;
}

}  // namespace cairn::model
