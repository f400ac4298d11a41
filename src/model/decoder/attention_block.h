#pragma once
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "model/context/attention.h"
#include "model/context/layout.h"
#include "model/decoder/blocks.h"
#include "model/decoder/prefix_attention.h"
#include "model/decoder/residual_branch.h"
#include "model/saved.h"
#include "model/values.h"

namespace cairn::model {

struct SlicedHeads;

// Query, key and value heads, [batch, length, heads, head_dim] each.
struct Heads {
  at::Tensor q, k, v;
};

// The optional fields of a batch about positions, [batch, length] int64 each; undefined where absent.
struct PositionFields {
  at::Tensor documents, positions;
  at::Tensor starts;          // AttentionOptions::document_starts
  at::Tensor document_count;  // its length is AttentionOptions::documents_max

  static PositionFields in(Values& values) {
    const auto field = [&](const char* name) { return values.has(name) ? values.get(name) : at::Tensor(); };
    return {field("documents"), field("positions"), field("document_starts"), field("documents_counted")};
  }
  static PositionFields in(const Saved& saved) {
    const auto field = [&](const char* name) { return saved.has(name) ? saved.get(name) : at::Tensor(); };
    return {field("documents"), field("positions"), field("document_starts"), field("documents_counted")};
  }
  // The same for `streams` times as many rows.
  PositionFields repeated(int64_t streams) const {
    const auto rows = [&](const at::Tensor& x) { return x.defined() ? x.repeat({streams, 1}) : x; };
    const at::Tensor count = document_count.defined() ? document_count.repeat({streams}) : document_count;
    return {rows(documents), rows(positions), rows(starts), count};
  }
  const at::Tensor* pointer() const { return documents.defined() ? &documents : nullptr; }
  void save(Saved& keep) const {
    if (documents.defined()) keep.put("documents", documents);
    if (positions.defined()) keep.put("positions", positions);
    if (starts.defined()) keep.put("document_starts", starts);
    if (document_count.defined()) keep.put("documents_counted", document_count);
  }
};

// The attention block of blocks.h: over whole sequences in attention_block.cpp, in slices along them in attention_slices.cpp.
class AttentionBlock final : public Block {
 public:
  AttentionBlock(const DecoderShape& shape, BlockIo io, AttentionParts parts);
  const Card& card() const override { return card_; }
  void forward(Values& values, Saved* keep, const Call& call) const override;
  void backward_input(Values& gradients, Saved& saved, const Call& call) const override;
  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override;
  void plain(Values& values, const Call& call) const override;
  void project(Values& values, const Call& call) const override;
  void attend(const Call& call) const override;
  void attend_backward(const Call& call) const override;
  void unproject(Values& values, Values& gradients, mesh::Gradients& into, const Call& call) const override;

 private:
  // Query heads, and key heads (as many as value heads).
  struct HeadCounts {
    int64_t q, kv;
    int64_t all() const { return q + 2 * kv; }
  };
  // The heads of this rank, from the widths of its weights: tensor parallelism splits them.
  HeadCounts local_head_counts(const Call& call) const;
  // The model's number of this rank's first key head. Patterns belong to heads of the model, not of the rank.
  int64_t first_kv_head(const Call& call) const;
  // ParScale: whether this call computes streams with prefixes, and these of this rank. `fields` for all rows of the streams.
  bool has_prefixes(const Call& call) const { return parts_.prefix && !call.options.single_stream; }
  Prefixes prefixes(const Call& call) const { return {call.weights.get(parts_.prefix->k), call.weights.get(parts_.prefix->v)}; }
  PositionFields of_streams(const PositionFields& fields, const Call& call) const {
    return has_prefixes(call) ? fields.repeated(call.weights.get(parts_.prefix->k).size(0)) : fields;
  }
  // Attention of all streams over prefixes and a KV cache with one row per sequence: [streams * batch, length, heads, head_dim].
  at::Tensor attend_streams(const Heads& heads, const Call& call) const;
  // The part of all causal pairs that the pattern's heads see, in sequences as long as the model's, up to a bound.
  double seen_part() const;
  Heads split(const at::Tensor& qkv, const HeadCounts& counts) const;  // views
  // Queries and keys as one tensor: they are adjacent, so one kernel call rotates both.
  at::Tensor queries_and_keys(const at::Tensor& qkv, const HeadCounts& counts) const;
  // Projection and rotation as one kernel.
  bool project_rotated(at::Tensor& projected, const at::Tensor& from, const HeadCounts& counts, int64_t length, Operand* normed,
                       const Call& call) const;

  static comm::Group& group_of(const ContextLayout& context, const Call& call) {
    return context.group ? *context.group : *call.axes.find("cp");
  }
  kernels::AttentionOptions options(const Call& call, int64_t length, const at::Tensor& documents, const at::Tensor& key_documents,
                                    const PositionFields* places = nullptr) const;

  // What a norm of contiguous heads [batch, length, heads, head_dim] is over: each of them, or all of a token.
  at::Tensor normed_part(const at::Tensor& heads) const { return parts_.normed_together ? heads.flatten(2) : heads; }
  // New heads instead of views: the gradient of the norm needs its input and its output.
  void norm_heads(Heads& heads, Saved* keep, const Call& call) const;
  void norm_heads_input(const Heads& into, const Heads& d, Saved& saved, const Call& call) const;
  void head_norm_gradients(Saved& saved, mesh::Gradients& into, const Call& call) const;

  // The angles of each position: [length, head_dim / 2], or [batch, length, head_dim / 2] where the batch has positions.
  static kernels::RopeTable angles(const PositionFields& places, const Call& call, int64_t length);
  // Rotates x in place, or overwrites x with the rotation of *from.
  void rotate(const at::Tensor& x, const PositionFields& places, const Call& call, bool inverse = false,
              const at::Tensor* from = nullptr) const;

  struct CachedKeys {
    at::Tensor k, v, documents;
  };
  // Appends keys, values and document ids of this slice to the KV cache and returns views of everything up to its end.
  CachedKeys append_to_cache(const Heads& heads, const PositionFields& places, const Call& call) const;

  // In slices. The keys that a slice sees: all up to its end, or those in the window.
  struct SeenKeys {
    int64_t begin, count;
    at::Tensor k, v, documents;
  };
  SeenKeys seen_keys(const SlicedHeads& all, const HeadCounts& counts, const Call& call) const;
  kernels::AttentionOptions options_of_slice(const Call& call, const PositionFields& places, const SeenKeys& seen) const;
  void forward_slice(Values& values, Saved* keep, const Call& call) const;
  // Overwrites d.q, adds to the gradients of the keys seen, and overwrites d.k and d.v with those of the slice's own keys: complete, as
  // later slices came before.
  void slice_gradients(Heads& d, SlicedHeads& all, const at::Tensor& dmixed, const at::Tensor& q, const at::Tensor& mixed,
                       const at::Tensor& lse, const PositionFields& places, const Call& call) const;
  // Heads of all positions of this rank, as attention along cp reads them.
  Heads whole_heads(const SlicedHeads& all, const Call& call) const;
  // Down to the gradient of what attention gave, for one slice.
  void backward_of_out(Values& gradients, Saved& saved, const Call& call) const;

  DecoderShape shape_;
  AttentionParts parts_;
  ResidualBranch branch_;
  Card card_;
};

}  // namespace cairn::model
