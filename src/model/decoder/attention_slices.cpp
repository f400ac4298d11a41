// The attention block in slices along the sequence (Call::sliced): StreamBP, parallel/activations/slices.h.
//
//   project          qkv of a slice, kept for the layer
//   forward_slice    the rest of forward, over the keys up to the slice's end
//   slice_gradients  adds to the gradients of those keys and takes the complete ones of the slice's own: later slices came before
//
// Along cp attention is one call for all positions of this rank: attend, and attend_backward between backward_of_out and unproject.
#include <algorithm>
#include <utility>

#include "base/memory_scope.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "model/decoder/attention_block.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/sliced_heads.h"

namespace cairn::model {

void AttentionBlock::project(Values& values, const Call& call) const {
  SlicedHeads& all = *call.sliced;
  const PositionFields places = PositionFields::in(values);
  const HeadCounts counts = local_head_counts(call);
  const int64_t length = call.slice.length;
  const base::MemoryScope scope("stream", "q, k, v");
  at::Tensor made;
  branch_.begin_forward(values, nullptr, call, [&](const at::Tensor& from, int64_t, int64_t) {
    const int64_t width = counts.all() * shape_.head_dim;
    if (!all.qkv.defined()) all.qkv = at::empty({all.batch, all.length, width}, from.options());
    made = all.batch == 1 ? all.qkv.narrow(1, call.slice.begin, length) : at::empty({all.batch, length, width}, from.options());
    parts_.qkv.forward(rows(made), from, call);
  });
  progress_messages(call);
  if (parts_.q_norm) {
    const auto keep = [&](at::Tensor& whole, const Norm& norm, const at::Tensor& raw) {
      const at::Tensor normed = norm.forward(normed_part(raw.contiguous()), call).y.view(raw.sizes());
      rotate(normed, places, call);
      if (!whole.defined()) whole = at::empty({all.batch, all.length, raw.size(2), shape_.head_dim}, normed.options());
      whole.narrow(1, call.slice.begin, length).copy_(normed);
    };
    keep(all.k, *parts_.k_norm, split(made, counts).k);
    if (call.slice.context) keep(all.q, *parts_.q_norm, split(made, counts).q);
  } else {
    rotate(queries_and_keys(made, counts), places, call);
  }
  if (all.batch > 1) all.qkv.narrow(1, call.slice.begin, length).copy_(made);
}

void AttentionBlock::attend(const Call& call) const {
  SlicedHeads& all = *call.sliced;
  const Heads heads = whole_heads(all, call);
  all.mixed = at::empty(heads.q.sizes(), heads.q.options());
  all.lse = at::empty({all.batch, heads.q.size(2), all.length},
                      kernels::is_half_precision(heads.q) ? heads.q.options().dtype(at::kFloat) : heads.q.options());
  const ContextLayout& context = *call.slice.context;
  context_attention(all.mixed, all.lse, heads.q, heads.k, heads.v, options(call, context.split.length, {}, {}),
                    all.documents.defined() ? &all.documents : nullptr, group_of(context, call), context.split, context.method,
                    context.mistakes);
}

void AttentionBlock::attend_backward(const Call& call) const {
  SlicedHeads& all = *call.sliced;
  const Heads heads = whole_heads(all, call);
  all.dqkv = at::empty(all.qkv.sizes(), all.qkv.options());
  const Heads d = split(all.dqkv, local_head_counts(call));
  const ContextLayout& context = *call.slice.context;
  context_attention_backward(d.q, d.k, d.v, all.dmixed, heads.q, heads.k, heads.v, all.mixed, all.lse,
                             options(call, context.split.length, {}, {}), all.documents.defined() ? &all.documents : nullptr,
                             group_of(context, call), context.split, context.method);
  all.mixed = all.lse = all.dmixed = all.q = all.k = at::Tensor();
}

void AttentionBlock::unproject(Values& values, Values& gradients, mesh::Gradients& into, const Call& call) const {
  const SlicedHeads& all = *call.sliced;
  const PositionFields places = PositionFields::in(values);
  const HeadCounts counts = local_head_counts(call);
  const auto [begin, length] = std::pair{call.slice.begin, call.slice.length};
  Saved saved;
  branch_.resume_forward(values, &saved, call);
  const at::Tensor dqkv = all.dqkv.narrow(1, begin, length).contiguous();
  if (parts_.q_norm) {
    Heads raw = split(all.qkv.narrow(1, begin, length), counts), d = split(dqkv, counts);
    norm_heads(raw, &saved, call);
    d.q = d.q.clone(), d.k = d.k.clone();  // the gradients of the norms need them beside those of their inputs
    rotate(d.q, places, call, /*inverse=*/true), rotate(d.k, places, call, /*inverse=*/true);
    norm_heads_input(split(dqkv, counts), d, saved, call);
  } else {
    rotate(queries_and_keys(dqkv, counts), places, call, /*inverse=*/true);
  }
  progress_messages(call);
  const ResidualBranch::Back from{.dy = branch_.norm() ? gradients.take(branch_.reads()) : values.get(branch_.reads())};
  const at::Tensor din = at::empty({all.batch * length, shape_.embed}, dqkv.options());
  branch_.end_backward(
      gradients, saved, from, din,
      [&](const at::Tensor& sums, int64_t first, int64_t count) {
        parts_.qkv.input_gradient(sums.narrow(0, first, count), rows(dqkv).narrow(0, first, count), call, nullptr, nullptr, first);
      },
      call);
  if (parts_.q_norm) head_norm_gradients(saved, into, call);
  parts_.qkv.weight_gradient(into, Operand::take(saved, "in"), Operand{.values = rows(dqkv)}, call);
  branch_.norm_gradients(saved, into, call);
}

AttentionBlock::SeenKeys AttentionBlock::seen_keys(const SlicedHeads& all, const HeadCounts& counts, const Call& call) const {
  const int64_t end = call.slice.begin + call.slice.length;
  const int64_t begin = shape_.window > 0 ? std::max<int64_t>(0, call.slice.begin + 1 - shape_.window) : 0;
  const Heads heads = split(all.qkv, counts);
  SeenKeys seen{begin, end - begin, {}, heads.v.narrow(1, begin, end - begin), {}};
  seen.k = (all.k.defined() ? all.k : heads.k).narrow(1, begin, seen.count);
  if (all.documents.defined()) seen.documents = all.documents.narrow(1, begin, seen.count);
  return seen;
}

kernels::AttentionOptions AttentionBlock::options_of_slice(const Call& call, const PositionFields& places, const SeenKeys& seen) const {
  kernels::AttentionOptions o{.window = shape_.window, .query_offset = call.slice.begin, .key_offset = seen.begin};
  if (places.documents.defined()) o.query_documents = &places.documents, o.key_documents = &seen.documents;
  return o;
}

void AttentionBlock::forward_slice(Values& values, Saved* keep, const Call& call) const {
  const SlicedHeads& all = *call.sliced;
  const PositionFields places = PositionFields::in(values);
  const HeadCounts counts = local_head_counts(call);
  if (call.slice.context) {
    const at::Tensor mixed = all.mixed.narrow(1, call.slice.begin, call.slice.length).contiguous();
    const ResidualBranch::In in = branch_.resume_forward(values, nullptr, call);
    branch_.end_forward(values, in, mixed.view({-1, counts.q * shape_.head_dim}), parts_.out, call, nullptr);
    if (keep) keep->put("mixed", mixed);
    return;
  }
  const ResidualBranch::In in = branch_.resume_forward(values, keep, call);
  const at::Tensor qkv = all.qkv.narrow(1, call.slice.begin, call.slice.length);
  Heads heads = split(qkv, counts);
  if (parts_.q_norm) {
    norm_heads(heads, keep, call);
    rotate(heads.q, places, call);
    if (keep) keep->put("q", heads.q), keep->put("k", heads.k);
  }
  const SeenKeys seen = seen_keys(all, counts, call);
  const kernels::AttentionOutput attended = kernels::attend(heads.q, seen.k, seen.v, options_of_slice(call, places, seen));
  progress_messages(call);
  branch_.end_forward(values, in, attended.out.reshape({-1, counts.q * shape_.head_dim}), parts_.out, call, nullptr);
  if (!keep) return;
  keep->put("qkv", qkv);
  keep->put("mixed", attended.out);
  keep->put("lse", attended.lse);
  places.save(*keep);
}

Heads AttentionBlock::whole_heads(const SlicedHeads& all, const Call& call) const {
  Heads heads = split(all.qkv, local_head_counts(call));
  if (parts_.q_norm) heads.q = all.q, heads.k = all.k;
  return heads;
}

void AttentionBlock::backward_of_out(Values& gradients, Saved& saved, const Call& call) const {
  SlicedHeads& all = *call.sliced;
  const at::Tensor mixed = saved.get("mixed"), dmixed = at::empty_like(mixed), dmixed_rows = dmixed.flatten(0, 1).flatten(1);
  Operand dout;
  const ResidualBranch::Back from = branch_.begin_backward(
      gradients, saved, call,
      [&](const at::Tensor& of, int64_t begin, int64_t count) {
        parts_.out.input_gradient(dmixed_rows.narrow(0, begin, count), of.narrow(0, begin, count), call,
                                  count == of.size(0) ? &dout : nullptr, nullptr, begin);
      },
      &dout);
  if (!all.dmixed.defined()) {
    std::vector<int64_t> sizes = mixed.sizes().vec();
    sizes[1] = all.length;
    all.dmixed = at::empty(sizes, mixed.options());
  }
  all.dmixed.narrow(1, call.slice.begin, call.slice.length).copy_(dmixed);
  if (branch_.norm()) gradients.add(branch_.reads(), from.dy);
  dout.save(saved, "dout", from.dout);
}

void AttentionBlock::slice_gradients(Heads& d, SlicedHeads& all, const at::Tensor& dmixed, const at::Tensor& q, const at::Tensor& mixed,
                                     const at::Tensor& lse, const PositionFields& places, const Call& call) const {
  const HeadCounts counts = local_head_counts(call);
  const SeenKeys seen = seen_keys(all, counts, call);
  if (!all.dk.defined()) {
    const base::MemoryScope scope("stream", "dk, dv");
    const std::vector<int64_t> sizes{all.batch, all.length, counts.kv, shape_.head_dim};
    const at::TensorOptions precise = kernels::is_half_precision(q) ? q.options().dtype(at::kFloat) : q.options();
    all.dk = at::zeros(sizes, precise), all.dv = at::zeros(sizes, precise);
  }
  if (call.options.slice_mistakes.forget_later_slices) all.dk.zero_(), all.dv.zero_();
  // This slice's part of them. The CPU kernel packs all keys that it is given, so it gets them piece by piece.
  constexpr int64_t kKeysAtOnce = 512;
  const int64_t piece = q.is_cuda() ? seen.count : std::min(kKeysAtOnce, seen.count);
  const at::Tensor dk = at::empty({all.batch, piece, counts.kv, shape_.head_dim}, q.options()), dv = at::empty_like(dk);
  const at::Tensor more_dq = piece < seen.count ? at::empty(q.sizes(), q.options()) : at::Tensor();
  for (int64_t begin = 0; begin < seen.count; begin += piece) {
    const int64_t count = std::min(piece, seen.count - begin);
    SeenKeys part{seen.begin + begin, count, seen.k.narrow(1, begin, count), seen.v.narrow(1, begin, count), {}};
    if (seen.documents.defined()) part.documents = seen.documents.narrow(1, begin, count);
    const kernels::AttentionGradients found =
        kernels::attention_gradients({begin == 0 ? d.q : more_dq, dk.narrow(1, 0, count), dv.narrow(1, 0, count)}, dmixed, q, part.k,
                                     part.v, mixed, lse, options_of_slice(call, places, part));
    if (begin > 0)
      d.q.add_(found.q);
    else if (!found.q.is_same(d.q))
      d.q.copy_(found.q);
    all.dk.narrow(1, part.begin, count).add_(found.k);
    all.dv.narrow(1, part.begin, count).add_(found.v);
  }
  d.k.copy_(all.dk.narrow(1, call.slice.begin, call.slice.length));
  d.v.copy_(all.dv.narrow(1, call.slice.begin, call.slice.length));
}

}  // namespace cairn::model
