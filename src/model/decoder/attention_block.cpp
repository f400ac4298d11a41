// x + out(attention(norm(x))) with grouped queries, hand-written. Options: rotary positions, biases, normed heads, a sliding window,
// document masks, a block pattern for each head, context parallelism (model/context), a KV cache, slices along the sequence
// (model/sliced_heads.h).
//
//   forward   in = norm(x), gathered over tp;  qkv = in w_qkv^T;  q, k rotated;  mixed = attention(q, k, v);  x + mixed w_out^T, reduced
//   backward  the same steps in reverse. Saved: x or in, qkv, lse, mixed; raw heads and statistics where heads are normed.
//
// In slices (Call::sliced) project() makes qkv of every slice first, which is kept; forward() goes on from there with the keys up to the
// slice's end; backward_input() adds to the gradients of those keys and takes the complete ones of its own.

#include "model/decoder/attention_block.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/fused_gemm.h"
#include "kernels/low_precision.h"
#include "model/decoder/plain_ops.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/sparse_cache.h"

namespace cairn::model {

AttentionBlock::AttentionBlock(const DecoderShape& shape, BlockIo io, AttentionParts parts)
    : shape_(shape), parts_(std::move(parts)), branch_(std::move(io), parts_.norm, shape.embed, shape.dropout) {
  const double embed = static_cast<double>(shape.embed), q = static_cast<double>(shape.heads * shape.head_dim),
               kv = static_cast<double>(shape.kv_heads * shape.head_dim);
  const bool apart = parts_.qkv.weight.count == 3;  // separate weights for queries, keys and values
  std::vector<std::string> mixes = {"qkv"};         // inputs of the attention
  BlockOp project{.name = "qkv", .axes = {"heads"}, .flops_per_token = 2 * embed * (q + 2 * kv), .saved_elements_per_token = q + 2 * kv};
  parts_.qkv.describe(project);
  card_ = {.optional_reads = {"documents", "positions", "document_starts", "documents_counted"}, .operations = {project}};
  const auto add_to_heads = [&](BlockOp operation) {
    operation.reads = !apart ? mixes : mixes.size() == 1 ? std::vector<std::string>{"qkv.0", "qkv.1"} : std::vector{mixes[0]};
    mixes = apart ? std::vector<std::string>{operation.name, "qkv.2"} : std::vector{operation.name};
    card_.operations.push_back(std::move(operation));
  };
  if (parts_.q_norm)
    add_to_heads({.name = "qk_norm",
                  .kind = BlockOp::Kind::norm,
                  .parameters = {parts_.q_norm->weight, parts_.k_norm->weight},
                  .axes = {"heads"},
                  .flops_per_token = 4 * (q + kv),
                  .saved_elements_per_token = q + kv});
  if (parts_.rotary) add_to_heads({.name = "rotary", .kind = BlockOp::Kind::elementwise, .axes = {"heads"}});
  if (parts_.prefix)
    card_.operations.push_back({.name = "prefix",
                                .parameters = {parts_.prefix->k, parts_.prefix->v},
                                .axes = {"heads"},
                                .flops_per_token = 4 * q * static_cast<double>(shape.streams.prefix_tokens)});
  card_.operations.push_back({.name = "attention",
                              .kind = BlockOp::Kind::attention,
                              .axes = {"heads"},
                              .flops_per_pair = 4 * q * seen_part(),
                              .saved_elements_per_token = q + static_cast<double>(shape.heads),
                              .reads = mixes,
                              .heads = shape.heads,
                              .key_heads = shape.kv_heads,
                              .causal = parts_.causal});
  BlockOp out{.name = "out", .axes = {"embed"}, .flops_per_token = 2 * q * embed};
  parts_.out.describe(out);
  card_.operations.push_back(std::move(out));
  branch_.describe(card_);
  card_.sliceable = parts_.causal && !parts_.pattern && !parts_.prefix;
  if (parts_.rotary) card_.buffers = {"rope.cos", "rope.sin"};
}

// False: the weight is not at hand as one matrix.
bool AttentionBlock::project_rotated(at::Tensor& projected, const at::Tensor& from, const HeadCounts& counts, int64_t length,
                                     Operand* normed, const Call& call) const {
  const kernels::RopeTable table{call.buffers.at("rope.cos"), call.buffers.at("rope.sin")};
  const kernels::RotatedHeads how{.table = table, .heads = counts.q + counts.kv, .length = length, .position = call.slice.begin};
  if (const std::optional<at::Tensor> bare = parts_.qkv.bare_weight(call)) {
    kernels::linear_rope(projected, from, *bare, how);
    return true;
  }
  const std::optional<Linear::Fp8Operands> quantized = parts_.qkv.fp8_operands(from, call, normed);
  if (quantized) kernels::linear_rope(projected, quantized->x, quantized->w, how);
  return quantized.has_value();
}

void AttentionBlock::forward(Values& values, Saved* keep, const Call& call) const {
  if (call.sliced) return forward_slice(values, keep, call);
  const PositionFields places = of_streams(PositionFields::in(values), call);
  const HeadCounts counts = local_head_counts(call);
  at::Tensor projected;
  Operand normed, mixed_heads;
  // The GEMM and the rotation are one kernel where all rows are at hand and nothing comes in between.
  const bool can_fuse_rope = parts_.rotary && !parts_.q_norm && !places.positions.defined();
  bool rotated = false;
  const ResidualBranch::In in = branch_.begin_forward(
      values, keep, call,
      [&](const at::Tensor& all, int64_t begin, int64_t count) {
        if (!projected.defined()) projected = at::empty({all.size(0), counts.all() * shape_.head_dim}, all.options());
        if (can_fuse_rope && count == all.size(0) &&
            project_rotated(projected, all, counts, batch_shape(values.get(branch_.reads()), call).length, keep ? &normed : nullptr,
                            call)) {
          rotated = true;
          return;
        }
        parts_.qkv.forward(projected.narrow(0, begin, count), all.narrow(0, begin, count), call,
                           keep && count == all.size(0) ? &normed : nullptr, nullptr, begin);
      },
      parts_.qkv.is_fp8(call) ? &normed : nullptr);
  progress_messages(call);
  const auto [batch, length] = in.batch_shape;
  const at::Tensor qkv = projected.view({batch, length, -1});
  Heads heads = split(qkv, counts);
  if (parts_.q_norm) norm_heads(heads, keep, call);
  if (parts_.q_norm)
    rotate(heads.q, places, call), rotate(heads.k, places, call);
  else if (!rotated)
    rotate(queries_and_keys(qkv, counts), places, call);
  if (keep && parts_.q_norm) keep->put("q", heads.q), keep->put("k", heads.k);
  std::optional<SparseCache> sparse;
  if (call.cache && parts_.pattern && SparseCache::can_drop(*parts_.pattern)) {
    CAIRN_CHECK(!places.documents.defined() && (call.slice.begin == 0 || length == 1), "{}: {} positions from {} into a sparse KV cache",
                card_.name, length, call.slice.begin);
    sparse.emplace(*parts_.pattern, first_kv_head(call), card_.name, *call.cache);
    sparse->append(heads.k, heads.v, call.slice.begin);
  }
  const bool cached_streams = call.cache && has_prefixes(call);
  const CachedKeys seen =
      call.cache && !sparse && !cached_streams ? append_to_cache(heads, places, call) : CachedKeys{heads.k, heads.v, places.documents};

  at::Tensor mixed, lse;
  if (sparse && call.slice.begin > 0) {
    mixed = sparse->attend(heads.q, call.slice.begin);
  } else if (cached_streams) {
    mixed = attend_streams(heads, call);
  } else if (call.slice.context) {
    CAIRN_CHECK(!parts_.pattern, "{}: a block pattern with context parallelism", card_.name);
    mixed = at::empty({batch, length, counts.q, shape_.head_dim}, qkv.options());
    lse = at::empty({batch, counts.q, length}, kernels::is_half_precision(qkv) ? qkv.options().dtype(at::kFloat) : qkv.options());
    const ContextLayout& context = *call.slice.context;
    context_attention(mixed, lse, heads.q, heads.k, heads.v, options(call, context.split.length, {}, {}), places.pointer(),
                      group_of(context, call), context.split, context.method, context.mistakes);
  } else {
    kernels::AttentionOutput attended =
        kernels::attend(heads.q, seen.k, seen.v, options(call, length, places.documents, seen.documents, call.cache ? nullptr : &places));
    mixed = std::move(attended.out), lse = std::move(attended.lse);
  }
  if (has_prefixes(call) && !call.cache) add_prefixes(mixed, lse, heads.q, prefixes(call));
  progress_messages(call);
  branch_.end_forward(values, in, mixed.view({batch * length, -1}), parts_.out, call, keep ? &mixed_heads : nullptr);
  if (!keep) return;
  CAIRN_CHECK(!call.cache, "{}: a KV cache is for decoding, not for gradients", card_.name);
  keep->put("qkv", qkv);
  if (normed.codes.defined()) normed.save(*keep, "in", in.rows);
  mixed_heads.save(*keep, "mixed", mixed, /*values_too=*/true);
  keep->put("lse", lse);
  places.save(*keep);
}

void AttentionBlock::backward_input(Values& gradients, Saved& saved, const Call& call) const {
  if (call.sliced && call.slice.context) return backward_of_out(gradients, saved, call);
  const at::Tensor qkv = saved.take("qkv"), mixed = saved.get("mixed"), lse = saved.take("lse");
  const PositionFields places = PositionFields::in(saved);
  const HeadCounts counts = local_head_counts(call);
  Heads heads = split(qkv, counts);
  if (parts_.q_norm) heads.q = saved.take("q"), heads.k = saved.take("k");
  const at::Tensor dmixed = at::empty_like(mixed), dmixed_rows = dmixed.view({dmixed.size(0) * dmixed.size(1), -1});
  Operand dout, dprojected;
  const auto into_heads = [&](const at::Tensor& all, int64_t begin, int64_t count) {
    parts_.out.input_gradient(dmixed_rows.narrow(0, begin, count), all.narrow(0, begin, count), call,
                              count == all.size(0) ? &dout : nullptr, nullptr, begin);
  };
  const ResidualBranch::Back from = branch_.begin_backward(gradients, saved, call, into_heads, &dout);
  progress_messages(call);
  const at::Tensor dqkv = at::empty(qkv.sizes(), qkv.options());  // contiguous, also where qkv is part of a larger tensor
  const Heads into = split(dqkv, counts);
  Heads d = parts_.q_norm ? Heads{at::empty_like(heads.q), at::empty_like(heads.k), into.v} : into;
  if (call.sliced) {
    slice_gradients(d, *call.sliced, dmixed, heads.q, mixed, lse, places, call);
  } else if (call.slice.context) {
    const ContextLayout& context = *call.slice.context;
    context_attention_backward(d.q, d.k, d.v, dmixed, heads.q, heads.k, heads.v, mixed, lse, options(call, context.split.length, {}, {}),
                               places.pointer(), group_of(context, call), context.split, context.method);
  } else {
    kernels::AttentionGradients found =
        kernels::attention_gradients({d.q, d.k, d.v}, dmixed, heads.q, heads.k, heads.v, mixed, lse,
                                     options(call, qkv.size(1), places.documents, places.documents, &places));
    d = {std::move(found.q), std::move(found.k), std::move(found.v)};
  }
  if (has_prefixes(call)) {
    const Prefixes dprefixes = prefix_gradients(d.q, dmixed, heads.q, prefixes(call), mixed, lse);
    saved.put("dprefix_k", dprefixes.k), saved.put("dprefix_v", dprefixes.v);
  }
  const bool apart = !d.q.is_same(into.q) && !d.k.is_same(into.k) && !d.v.is_same(into.v);
  const bool fuse_rope = apart && parts_.rotary && !parts_.q_norm && !places.positions.defined();
  if (!fuse_rope && !d.v.is_same(into.v)) into.v.copy_(d.v);
  if (fuse_rope) {
    kernels::rope_backward(dqkv.view({dqkv.size(0), dqkv.size(1), -1, shape_.head_dim}), {d.q, d.k, d.v},
                           {call.buffers.at("rope.cos"), call.buffers.at("rope.sin")}, call.slice.begin);
  } else if (parts_.q_norm) {
    d.q = d.q.contiguous(), d.k = d.k.contiguous();
    rotate(d.q, places, call, /*inverse=*/true), rotate(d.k, places, call, /*inverse=*/true);
    norm_heads_input(into, d, saved, call);
  } else if (d.q.is_same(into.q)) {
    rotate(queries_and_keys(dqkv, counts), places, call, /*inverse=*/true);
  } else {
    rotate(into.q, places, call, /*inverse=*/true, &d.q), rotate(into.k, places, call, /*inverse=*/true, &d.k);
  }
  progress_messages(call);
  const at::Tensor din = at::empty_like(from.dout);
  const auto back = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
    parts_.qkv.input_gradient(sums.narrow(0, begin, count), rows(dqkv).narrow(0, begin, count), call,
                              count == sums.size(0) ? &dprojected : nullptr, nullptr, begin);
  };
  branch_.end_backward(gradients, saved, from, din, back, call);
  dout.save(saved, "dout", from.dout);
  dprojected.save(saved, "dqkv", rows(dqkv), parts_.qkv.needs_values());
  if (saved.has("mixed.codes")) saved.take("mixed");
}

void AttentionBlock::backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const {
  Operand attended = Operand::take(saved, "mixed");
  if (attended.values.defined()) attended.values = attended.values.flatten(0, 1).flatten(1);
  parts_.out.product_gradient(into, attended, Operand::take(saved, "dout"), call);
  progress_messages(call);
  if (call.sliced && call.slice.context) return branch_.bias_gradient(saved, into, parts_.out, call);  // unproject does the rest
  if (parts_.q_norm) head_norm_gradients(saved, into, call);
  if (has_prefixes(call)) {
    into.add(parts_.prefix->v, saved.take("dprefix_v"));
    into.add(parts_.prefix->k, saved.take("dprefix_k"));
  } else if (parts_.prefix) {
    into.skip(parts_.prefix->v), into.skip(parts_.prefix->k);
  }
  parts_.qkv.weight_gradient(into, Operand::take(saved, "in"), Operand::take(saved, "dqkv"), call);
  branch_.weight_gradients(saved, into, parts_.out, call);
}

void AttentionBlock::plain(Values& values, const Call& call) const {
  const at::Tensor x = branch_.plain_in(values, call);
  const PositionFields places = of_streams(PositionFields::in(values), call);
  Heads heads = split(parts_.qkv.plain(x, call), {shape_.heads, shape_.kv_heads});
  if (parts_.q_norm) {
    heads.q = parts_.q_norm->plain(normed_part(heads.q), call).view(heads.q.sizes());
    heads.k = parts_.k_norm->plain(normed_part(heads.k), call).view(heads.k.sizes());
  }
  if (parts_.rotary) {
    const kernels::RopeTable table = angles(places, call, x.size(1));
    heads.q = plain_rope(heads.q, table.cos, table.sin);
    heads.k = plain_rope(heads.k, table.cos, table.sin);
  }
  const std::optional<Prefixes> before = has_prefixes(call) ? std::optional(prefixes(call)) : std::nullopt;
  const at::Tensor mixed = parts_.causal ? plain_attention(heads.q, heads.k, heads.v, shape_.window, places.documents,
                                                           parts_.pattern ? &*parts_.pattern : nullptr, before ? &*before : nullptr)
                                         : plain_full_attention(heads.q, heads.k, heads.v);
  branch_.plain_out(values, parts_.out.plain(mixed.flatten(2), call));
}

AttentionBlock::HeadCounts AttentionBlock::local_head_counts(const Call& call) const {
  const int64_t q = parts_.out.in_width(call) / shape_.head_dim;
  return {q, (parts_.qkv.out_width(call) / shape_.head_dim - q) / 2};
}

// The rows of the query heads come first in every form of the weight, and ranks may hold unequally many.
int64_t AttentionBlock::first_kv_head(const Call& call) const {
  const mesh::Interval queries = local_rows({parts_.qkv.weight.first, 1}, shape_.heads * shape_.head_dim, call);
  return queries.begin / shape_.head_dim / (shape_.heads / shape_.kv_heads);
}

double AttentionBlock::seen_part() const {
  constexpr int64_t kBlocksCounted = 512;
  if (!parts_.pattern) return 1;
  const kernels::BlockPattern& pattern = *parts_.pattern;
  const int64_t length = shape_.table_length > 0 ? shape_.table_length : shape_.length;
  int64_t blocks = std::clamp<int64_t>((length + pattern.block - 1) / pattern.block, 1, kBlocksCounted);
  if (pattern.table) blocks = std::min(blocks, pattern.table->blocks);
  return static_cast<double>(kernels::seen_pairs(pattern, blocks)) / (static_cast<double>(pattern.kv_heads * blocks * (blocks + 1)) / 2);
}

Heads AttentionBlock::split(const at::Tensor& qkv, const HeadCounts& counts) const {
  const at::Tensor heads = qkv.view({qkv.size(0), qkv.size(1), -1, shape_.head_dim});
  return {heads.narrow(2, 0, counts.q), heads.narrow(2, counts.q, counts.kv), heads.narrow(2, counts.q + counts.kv, counts.kv)};
}

at::Tensor AttentionBlock::queries_and_keys(const at::Tensor& qkv, const HeadCounts& counts) const {
  return qkv.view({qkv.size(0), qkv.size(1), -1, shape_.head_dim}).narrow(2, 0, counts.q + counts.kv);
}

kernels::AttentionOptions AttentionBlock::options(const Call& call, int64_t length, const at::Tensor& documents,
                                                  const at::Tensor& key_documents, const PositionFields* places) const {
  kernels::AttentionOptions o{.causal = parts_.causal, .query_offset = call.slice.begin, .key_offset = call.cache ? 0 : call.slice.begin};
  if (parts_.pattern) o.pattern = &*parts_.pattern, o.first_kv_head = first_kv_head(call);
  if (shape_.window > 0 && call.slice.begin + length > shape_.window) o.window = shape_.window;
  if (documents.defined()) o.query_documents = &documents, o.key_documents = &key_documents;
  if (documents.defined() && places && places->starts.defined()) o.document_starts = &places->starts;
  if (o.document_starts && places->document_count.defined()) o.documents_max = places->document_count.size(0);
  return o;
}

void AttentionBlock::norm_heads(Heads& heads, Saved* keep, const Call& call) const {
  const at::Tensor raw_q = heads.q.contiguous(), raw_k = heads.k.contiguous();
  const Norm::Result q = parts_.q_norm->forward(normed_part(raw_q), call), k = parts_.k_norm->forward(normed_part(raw_k), call);
  heads.q = q.y.view(raw_q.sizes()), heads.k = k.y.view(raw_k.sizes());
  if (!keep) return;
  keep->put("raw_q", raw_q), keep->put("q_statistics", q.statistics);
  keep->put("raw_k", raw_k), keep->put("k_statistics", k.statistics);
}

void AttentionBlock::norm_heads_input(const Heads& into, const Heads& d, Saved& saved, const Call& call) const {
  const auto gradient = [&](const Norm& norm, const at::Tensor& dy, const char* raw, const char* statistics) {
    const at::Tensor dx = at::empty_like(dy);
    norm.input_gradient(normed_part(dx), normed_part(dy), normed_part(saved.get(raw)), saved.get(statistics), call);
    return dx;
  };
  into.q.copy_(gradient(*parts_.q_norm, d.q, "raw_q", "q_statistics"));
  into.k.copy_(gradient(*parts_.k_norm, d.k, "raw_k", "k_statistics"));
  saved.put("dq", d.q);
  saved.put("dk", d.k);
}

void AttentionBlock::head_norm_gradients(Saved& saved, mesh::Gradients& into, const Call& call) const {
  const auto contribute = [&](const Norm& norm, const char* dy, const char* raw, const char* statistics) {
    norm.weight_gradient(into, normed_part(saved.take(dy)), normed_part(saved.take(raw)), saved.take(statistics), call);
  };
  contribute(*parts_.k_norm, "dk", "raw_k", "k_statistics");
  contribute(*parts_.q_norm, "dq", "raw_q", "q_statistics");
}

kernels::RopeTable AttentionBlock::angles(const PositionFields& places, const Call& call, int64_t length) {
  const at::Tensor &cos = call.buffers.at("rope.cos"), &sin = call.buffers.at("rope.sin");
  if (!places.positions.defined()) {
    const int64_t begin = call.slice.begin;
    return {cos.slice(0, begin, begin + length), sin.slice(0, begin, begin + length)};
  }
  const at::Tensor picked = places.positions.reshape({-1});
  const std::vector<int64_t> shape{places.positions.size(0), places.positions.size(1), cos.size(1)};
  return {cos.index_select(0, picked).view(shape), sin.index_select(0, picked).view(shape)};
}

void AttentionBlock::rotate(const at::Tensor& x, const PositionFields& places, const Call& call, bool inverse,
                            const at::Tensor* from) const {
  if (!parts_.rotary) {
    if (from) x.copy_(*from);
    return;
  }
  if (!places.positions.defined())
    return kernels::rope(x, {call.buffers.at("rope.cos"), call.buffers.at("rope.sin")}, call.slice.begin, inverse, from);
  const kernels::RopeTable table = angles(places, call, x.size(1));
  // All tokens as one long row, whose table has an entry for every token.
  const std::vector<int64_t> row{1, -1, x.size(2), x.size(3)};
  const at::Tensor rotated = from ? from->reshape(row) : at::Tensor();
  kernels::rope(x.view(row), {table.cos.flatten(0, 1), table.sin.flatten(0, 1)}, 0, inverse, from ? &rotated : nullptr);
}

AttentionBlock::CachedKeys AttentionBlock::append_to_cache(const Heads& heads, const PositionFields& places, const Call& call) const {
  const int64_t end = call.slice.begin + heads.k.size(1);
  CAIRN_CHECK(end <= call.cache->capacity, "{}: position {} is beyond the {} of the KV cache", card_.name, end, call.cache->capacity);
  const auto store = [&](const std::string& name, const at::Tensor& part) {
    at::Tensor& kept = call.cache->tensors[card_.name + name];
    if (!kept.defined()) {
      std::vector<int64_t> shape = part.sizes().vec();
      shape[1] = call.cache->capacity;
      kept = at::empty(shape, part.options());
    }
    kept.narrow(1, call.slice.begin, part.size(1)).copy_(part);
    return kept.narrow(1, 0, end);
  };
  return {store(".k", heads.k), store(".v", heads.v), places.documents.defined() ? store(".documents", places.documents) : at::Tensor()};
}

at::Tensor AttentionBlock::attend_streams(const Heads& heads, const Call& call) const {
  const Prefixes own = prefixes(call);
  const int64_t streams = own.k.size(0), before = own.k.size(2), end = before + call.slice.begin + heads.k.size(1);
  const at::Tensor q = streams_as_heads(heads.q, streams);
  const std::vector<int64_t> rows_of_streams{streams, q.size(0), q.size(1), own.k.size(1), own.k.size(3)};
  const auto append = [&](const char* name, const at::Tensor& part, const at::Tensor& prefix) {
    at::Tensor& kept = call.cache->tensors[card_.name + name];
    if (!kept.defined()) {
      call.cache->places[card_.name + name] = {.before = before};
      kept = at::empty({q.size(0), before + call.cache->capacity, streams * own.k.size(1), own.k.size(3)}, part.options());
    }
    CAIRN_CHECK(end <= kept.size(1), "{}: place {} is beyond the {} of the KV cache", card_.name, end, kept.size(1));
    if (call.slice.begin == 0) kept.narrow(1, 0, before).copy_(prefix.permute({2, 0, 1, 3}).flatten(1, 2));
    kept.narrow(1, end - q.size(1), q.size(1)).unflatten(2, {streams, -1}).copy_(part.view(rows_of_streams).permute({1, 2, 0, 3, 4}));
    return kept.narrow(1, 0, end);
  };
  const at::Tensor k = append(".k", heads.k, own.k), v = append(".v", heads.v, own.v);
  kernels::AttentionOptions o = options(call, q.size(1), {}, {});
  if (o.window == 0) {
    o.query_offset += before;  // one call: the prefix is the first keys
    return streams_as_rows(kernels::attend(q, k, v, o).out, streams);
  }
  const auto tokens = [&](const at::Tensor& x) { return x.narrow(1, before, end - before); };
  const kernels::AttentionOutput attended = kernels::attend(q, tokens(k), tokens(v), o);
  add_prefixes(attended.out, attended.lse, q, streams_as_heads(own));  // a window does not end its view
  return streams_as_rows(attended.out, streams);
}

std::unique_ptr<Block> make_attention_block(const DecoderShape& shape, BlockIo io, AttentionParts parts) {
  return std::make_unique<AttentionBlock>(shape, std::move(io), std::move(parts));
}

}  // namespace cairn::model
