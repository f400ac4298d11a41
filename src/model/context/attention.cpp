#include "model/context/attention.h"

#include <utility>

#include "base/check.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

// Queries at `query_split`, keys at `split`.
ContextCall context_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::AttentionOptions& options,
                         const at::Tensor* documents, comm::Group& group, const ContextSplit& query_split, const ContextSplit& split,
                         const AfterKernel& after_kernel) {
  check(split, group.size());
  const int64_t queries_here = held(query_split, group.rank()), keys_here = held(split, group.rank());
  CAIRN_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
              "attention over q {}, k {}, v {}", c10::str(q.sizes()), c10::str(k.sizes()), c10::str(v.sizes()));
  if (q.size(1) != queries_here || k.size(1) != keys_here)
    base::fail_input(
        "coordinate {} along cp holds {} positions of {}, but hands in {} queries and {} keys: cut the batch by the same split",
        group.rank(), keys_here, split.length, q.size(1), k.size(1));
  if (documents)
    CAIRN_CHECK(documents->scalar_type() == at::kLong && documents->dim() == 2 && documents->size(0) == q.size(0) &&
                    documents->size(1) == queries_here,
                "documents {} of {} for queries {}", c10::str(documents->sizes()), c10::toString(documents->scalar_type()),
                c10::str(q.sizes()));
  ContextQueries queries{segments(query_split, group.rank()),
                         split.length,
                         {.scale = options.scale, .causal = options.causal, .window = options.window},
                         documents ? *documents : at::Tensor()};
  return {group, split, query_split, std::move(queries), k, v, after_kernel};
}

bool exchanges_heads(const ContextMethod& method, int ranks) {
  return ranks > 1 && (method.form == ContextForm::ulysses || method.ulysses > 1);
}

void attend(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const ContextCall& call, ContextForm form) {
  ContextForward forward(q, call.queries);
  switch (form) {
    case ContextForm::gather:
      gather_forward(forward, call);
      break;
    case ContextForm::token_ring:
      token_ring_forward(forward, call, q);
      break;
    case ContextForm::ring:
    case ContextForm::ring_both_ways:
    case ContextForm::ulysses:  // of one rank
      ring_forward(forward, call, form == ContextForm::ring_both_ways);
  }
  forward.finish(out, lse);
}

}  // namespace

void context_attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group, const ContextSplit& split,
                       const ContextMethod& method, ContextMistakes mistakes, const AfterKernel& after_kernel) {
  ContextCall call = context_call(q, k, v, options, documents, group, split, split, after_kernel);
  call.queries.mistakes = mistakes;
  check(method, group.size(), q.size(2));
  if (exchanges_heads(method, group.size())) return ulysses_forward(out, lse, q, call, method);
  attend(out, lse, q, call, method.form);
}

void context_attention_over_cache(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const kernels::AttentionOptions& options, comm::Group& group,
                                  const ContextSplit& queries, const ContextSplit& keys, const ContextMethod& method,
                                  const AfterKernel& after_kernel) {
  if (exchanges_heads(method, group.size()))
    base::fail_input("{}: queries over a cache of keys are not exchanged for heads: use ring, gather or token_ring",
                     to_string(method, group.size()));
  CAIRN_CHECK(queries.pieces.size() == keys.pieces.size() && queries.length == keys.length,
              "queries over {} ranks and {} positions, keys over {} and {}", queries.pieces.size(), queries.length, keys.pieces.size(),
              keys.length);
  attend(out, lse, q, context_call(q, k, v, options, nullptr, group, queries, keys, after_kernel), method.form);
}

void context_attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group,
                                const ContextSplit& split, const ContextMethod& method, const AfterKernel& after_kernel) {
  const ContextCall call = context_call(q, k, v, options, documents, group, split, split, after_kernel);
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
