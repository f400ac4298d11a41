#include "model/context/attention.h"

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

bool exchanges_heads(const ContextMethod& method, int ranks) {
  return ranks > 1 && (method.form == ContextForm::ulysses || method.ulysses > 1);
}

}  // namespace

void context_attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group, const ContextSplit& split,
                       const ContextMethod& method, ContextMistakes mistakes) {
  ContextCall call = context_call(q, k, v, options, documents, group, split);
  call.queries.mistakes = mistakes;
  check(method, group.size(), q.size(2));
  if (exchanges_heads(method, group.size())) return ulysses_forward(out, lse, q, call, method);
  ContextForward forward(q, call.queries);
  switch (method.form) {
    case ContextForm::gather:
      gather_forward(forward, call);
      break;
    case ContextForm::token_ring:
      token_ring_forward(forward, call, q);
      break;
    case ContextForm::ring:
    case ContextForm::ring_both_ways:
    case ContextForm::ulysses:  // of one rank
      ring_forward(forward, call, method.form == ContextForm::ring_both_ways);
  }
  forward.finish(out, lse);
}

void context_attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group,
                                const ContextSplit& split, const ContextMethod& method) {
  const ContextCall call = context_call(q, k, v, options, documents, group, split);
  check(method, group.size(), q.size(2));
  const ContextGradientInputs inputs{dout, q, out, lse};
  if (exchanges_heads(method, group.size())) return ulysses_backward(dq, dk, dv, inputs, call, method);
  ContextBackward backward(dout, q, out, lse, call.queries);
  at::Tensor gradient;
  switch (method.form) {
    case ContextForm::gather:
      gradient = gather_backward(backward, call);
      break;
    case ContextForm::token_ring:
      gradient = token_ring_backward(backward, call, inputs);
      break;
    case ContextForm::ring:
    case ContextForm::ring_both_ways:
    case ContextForm::ulysses:
      gradient = ring_backward(backward, call, method.form == ContextForm::ring_both_ways);
  }
  backward.finish(dq);
  unpack_keys(gradient, dk, dv);
}

}  // namespace cairn::model
