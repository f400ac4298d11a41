#include "model/context/attention.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

ContextCall context_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::AttentionOptions& options,
                         const at::Tensor* documents, comm::Group& group, const ContextSplit& split) {
  check(split, group.size());
  const int64_t local = held(split, group.rank());
  CAIRN_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
              "attention over q {}, k {}, v {}", c10::str(q.sizes()), c10::str(k.sizes()), c10::str(v.sizes()));
  if (q.size(1) != local || k.size(1) != local)
    base::fail_input(
        "coordinate {} along cp holds {} positions of {}, but hands in {} queries and {} keys: cut the batch by the same split",
        group.rank(), local, split.length, q.size(1), k.size(1));
  if (documents)
    CAIRN_CHECK(
        documents->scalar_type() == at::kLong && documents->dim() == 2 && documents->size(0) == q.size(0) && documents->size(1) == local,
        "documents {} of {} for queries {}", c10::str(documents->sizes()), c10::toString(documents->scalar_type()), c10::str(q.sizes()));
  ContextQueries queries{segments(split, group.rank()),
                         split.length,
                         {.scale = options.scale, .causal = options.causal, .window = options.window},
                         documents ? *documents : at::Tensor()};
  return {group, split, std::move(queries), k, v};
}

}  // namespace

void context_attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group, const ContextSplit& split,
                       ContextForm form) {
  const ContextCall call = context_call(q, k, v, options, documents, group, split);
  ContextForward forward(q, call.queries);
  (form == ContextForm::gather ? gather_forward : ring_forward)(forward, call);
  forward.finish(out, lse);
}

void context_attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group,
                                const ContextSplit& split, ContextForm form) {
  const ContextCall call = context_call(q, k, v, options, documents, group, split);
  ContextBackward backward(dout, q, out, lse, call.queries);
  const at::Tensor gradient = (form == ContextForm::gather ? gather_backward : ring_backward)(backward, call);
  backward.finish(dq);
  unpack_keys(gradient, dk, dv);
}

std::vector<ContextRoute> context_routes(const ContextSplit& split, const kernels::AttentionOptions& options) {
  const int n = static_cast<int>(split.pieces.size());
  std::vector<ContextRoute> routes(split.pieces.size());
  for (int owner = 0; owner < n; ++owner)
    for (int distance = 1; distance < n; ++distance) {
      if (!sees(split, options, (owner + distance) % n, owner)) continue;
      ContextRoute& route = routes[static_cast<size_t>(owner)];
      if (route.first == 0) route.first = distance;
      route.last = distance;
    }
  return routes;
}

ContextBytes context_bytes(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                           ContextForm form) {
  const int n = static_cast<int>(split.pieces.size());
  const std::vector<ContextRoute> routes = context_routes(split, options);
  ContextBytes bytes;
  for (int owner = 0; owner < n; ++owner) {
    const int64_t rows = held(split, owner) * sizes.batch, elements = 2 * rows * sizes.kv_heads * sizes.head_dim;
    const int64_t block = elements * sizes.element_bytes + (sizes.documents ? 8 * rows : 0);
    const int64_t gradient = elements * std::max<int64_t>(4, sizes.element_bytes);
    const auto [first, last] = form == ContextForm::gather ? ContextRoute{1, n - 1} : routes[static_cast<size_t>(owner)];
    bytes.forward += last * block;
    bytes.backward += last * block + (last > 0 ? (last - first + 1) * gradient : 0);
  }
  return bytes;
}

}  // namespace cairn::model
