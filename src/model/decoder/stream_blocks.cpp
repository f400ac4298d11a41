#include "model/decoder/stream_blocks.h"

#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/stream_mixer.h"
#include "model/decoder/wiring.h"

namespace cairn::model {
namespace {

bool shards_tokens(const Call& call, TokenLayout tokens) {
  return layout_in(call, tokens) == TokenLayout::sharded && call.axes.find("tp") != nullptr;
}

BatchShape times(const BatchShape& shape, int64_t streams) { return {shape.batch * streams, shape.length}; }

class RepeatBlock final : public Block {
 public:
  RepeatBlock(const DecoderShape& shape, std::string reads, std::string writes)
      : streams_(shape.streams), tokens_(token_layout(shape)), reads_(std::move(reads)), writes_(std::move(writes)) {
    card_ = {.name = "streams",
             .reads = {reads_},
             .writes = {writes_},
             .operations = {{.name = "repeat", .kind = BlockOp::Kind::other, .axes = {"embed"}, .by_sample = true}}};
    card_.rows = streams_.count;
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved*, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    if (call.options.single_stream) return values.put(writes_, x);
    const BatchShape all = batch_shape(x, call);
    const at::Tensor tokens = gather_tokens(rows(x), all, call, card_.name, {}, tokens_);
    if (streams_.along_tp) {
      const comm::Group* tp = call.axes.find("tp");
      const int64_t here = streams_.count / (tp ? tp->size() : 1);
      return values.put(writes_, tokens.repeat({here, 1}).view({here * all.batch, all.length, -1}));
    }
    at::Tensor repeated = tokens.repeat({streams_.count, 1});
    if (shards_tokens(call, tokens_)) repeated = local_tokens(repeated, call);
    values.put(writes_, as_stream(repeated, times(all, streams_.count), call, tokens_));
  }

  // A token's gradient is the sum over its streams.
  void backward_input(Values& gradients, Saved&, const Call& call) const override {
    const at::Tensor d = gradients.take(writes_);
    if (call.options.single_stream) return gradients.add(reads_, d);
    const bool sharded = shards_tokens(call, tokens_);
    const BatchShape all = call.slice.length > 0 ? batch_shape(d, call) : BatchShape{d.size(0) / streams_.count, d.size(1)};
    // Along tp each rank has the tokens of its streams, as sequence parallelism would give them.
    const at::Tensor tokens =
        gather_tokens(rows(d), times(all, streams_.count), call, card_.name, {}, streams_.along_tp ? TokenLayout::sharded : tokens_);
    at::Tensor sum = tokens.view({streams_.count, all.tokens(), -1}).sum(0);
    if (sharded) sum = local_tokens(sum, call);
    gradients.add(reads_, as_stream(sum.contiguous(), all, call, tokens_));
  }

  void backward_weight(Saved&&, mesh::Gradients&, const Call&) const override {}

  void plain(Values& values, const Call& call) const override {
    values.put(writes_, call.options.single_stream ? values.get(reads_) : values.get(reads_).repeat({streams_.count, 1, 1}));
  }

 private:
  StreamShape streams_;
  TokenLayout tokens_;
  std::string reads_, writes_;
  Card card_;
};

class StreamedBlock final : public Block {
 public:
  StreamedBlock(const DecoderShape& shape, std::unique_ptr<Block> block)
      : streams_(shape.streams), block_(std::move(block)), card_(block_->card()) {
    const auto all = static_cast<double>(streams_.count);
    for (BlockOp& one : card_.operations) {
      one.flops_per_token *= all, one.flops_per_pair *= all;
      one.saved_elements_per_token *= all, one.result_elements_per_token *= all;
    }
    card_.streams.clear();  // they have more tokens than the pass
    card_.rows = streams_.count;
    card_.sliceable = false;
  }

  const Card& card() const override { return card_; }
  void forward(Values& values, Saved* keep, const Call& call) const override { block_->forward(values, keep, *Streamed(*this, call)); }
  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    block_->backward_input(gradients, saved, *Streamed(*this, call));
  }
  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    block_->backward_weight(std::move(saved), into, *Streamed(*this, call));
  }
  void plain(Values& values, const Call& call) const override { block_->plain(values, *Streamed(*this, call)); }

 private:
  // The call of all streams of this rank.
  class Streamed {
   public:
    Streamed(const StreamedBlock& block, const Call& call) : call_(with(call, block.streams_, axes_)) {
      for (const char* axis : {"island", "pp", "dp", "cp", "ep"})
        if (comm::Group* group = call.axes.find(axis)) axes_.put(axis, *group);
      if (call.options.single_stream) return;
      comm::Group* tp = call.axes.find("tp");
      if (block.streams_.along_tp && tp) {
        if (!call_.progress) call_.progress = tp;
      }
      call_.slice.batch *= block.streams_.count / (block.streams_.along_tp && tp ? tp->size() : 1);
    }
    Streamed(const Streamed&) = delete;
    Streamed& operator=(const Streamed&) = delete;
    const Call& operator*() const { return call_; }

   private:
    static Call with(const Call& call, const StreamShape& streams, const mesh::Axes& own) {
      return {.weights = call.weights,
              .buffers = call.buffers,
              .axes = streams.along_tp ? own : call.axes,  // a value in flight may outlive this object
              .random = call.random,
              .needs = call.needs,
              .slice = call.slice,
              .cache = call.cache,
              .token_keys = call.token_keys,
              .into = call.into,
              .options = call.options,
              .chunks_logits = call.chunks_logits,
              .sliced = call.sliced,
              .progress = call.progress};
    }

    mesh::Axes axes_;  // all but tp
    Call call_;
  };

  StreamShape streams_;
  std::unique_ptr<Block> block_;
  Card card_;
};

// z = concatenation of the streams' normed states n_p (with the streams' numbers innermost, as published weights have it), h = W1 z + b1,
// s = softmax(W2 silu(h) + b2), w = (1 - eps) s + eps / P, y = sum_p w_p n_p. Backward, with dw_p = dy . n_p:
//   ds = (1 - eps) s (dw - sum_p s_p dw_p),  dh = silu'(h) (W2^T ds),  dn_p = w_p dy + (W1^T dh)_p
// Along tp each rank mixes its part of the tokens.
class MixerBlock final : public Block {
 public:
  MixerBlock(const DecoderShape& shape, std::string reads, std::string writes, MixerParts parts)
      : streams_(shape.streams), tokens_(token_layout(shape)), reads_(std::move(reads)), writes_(std::move(writes)), p_(std::move(parts)) {
    const double embed = static_cast<double>(shape.embed), all = static_cast<double>(streams_.count);
    card_ = {.name = "mixer",
             .reads = {reads_},
             .writes = {writes_},
             .operations = {{.name = "norm",
                             .kind = BlockOp::Kind::norm,
                             .parameters = p_.norm.parameters(),
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed * all,
                             .saved_elements_per_token = 2 * embed * all},
                            {.name = "mixer",
                             .kind = BlockOp::Kind::other,
                             .parameters = {p_.w1, p_.b1, p_.w2, p_.b2},
                             .axes = {"embed"},
                             .flops_per_token = 2 * embed * (embed * all + all) + 4 * embed * all,
                             .saved_elements_per_token = embed * all + 2 * embed + all}}};
    card_.rows = streams_.count;
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const Norm::Result normed = p_.norm.forward(x, call);
    if (keep) keep->put("x", x), keep->put("statistics", normed.statistics);
    if (call.options.single_stream) return values.put(writes_, normed.y);
    const BatchShape all = tokens_of(x, call);
    at::Tensor n = gather_tokens(rows(normed.y), times(all, streams_.count), call, card_.name, {}, rows_layout())
                       .view({streams_.count, all.tokens(), -1});
    if (shards_tokens(call, tokens_)) n = n.narrow(1, own(all, call).begin, own(all, call).length());
    const at::Tensor z = n.permute({1, 2, 0}).contiguous(), h = at::linear(z.flatten(1), weight(p_.w1, call), weight(p_.b1, call));
    const at::Tensor scores = at::linear(at::silu(h), weight(p_.w2, call), weight(p_.b2, call));
    const at::Tensor s = (scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat)).softmax(-1);
    const at::Tensor y = (z * smoothed(s).to(z.scalar_type()).unsqueeze(1)).sum(2);
    values.put(writes_, as_stream(y, all, call, tokens_));
    if (keep) keep->put("z", z), keep->put("h", h), keep->put("s", s);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor x = saved.get("x");
    at::Tensor dnormed;
    if (call.options.single_stream) {
      dnormed = gradients.take(writes_);
    } else {
      const BatchShape all = tokens_of(x, call);
      const at::Tensor dy = rows(gradients.take(writes_)), z = saved.get("z"), h = saved.take("h"), s = saved.take("s");
      const at::Tensor dw = (z * dy.unsqueeze(2)).sum(1, /*keepdim=*/false, s.scalar_type()) * (1 - streams_.smoothing);
      const at::Tensor ds = (s * (dw - (s * dw).sum(1, true))).to(z.scalar_type());
      const at::Tensor gate = at::sigmoid(h);
      const at::Tensor dh = at::mm(ds, weight(p_.w2, call)) * (gate * (1 + h * (1 - gate)));
      const at::Tensor dz =
          at::mm(dh, weight(p_.w1, call)).view(z.sizes()).add_(dy.unsqueeze(2) * smoothed(s).to(z.scalar_type()).unsqueeze(1));
      saved.put("ds", ds), saved.put("dh", dh), saved.put("a", h * gate);
      // Every rank gets what the others found for the tokens that it has: its own tokens of all streams, or all tokens of its streams.
      const at::Tensor whole = gather_tokens(dz.flatten(1), all, call, card_.name, {}, tokens_);
      dnormed = whole.view({all.tokens(), -1, streams_.count}).permute({2, 0, 1}).reshape({streams_.count * all.tokens(), -1});
      if (shards_tokens(call, rows_layout())) dnormed = local_tokens(dnormed, call);
      dnormed = dnormed.contiguous().view(x.sizes());
    }
    const at::Tensor dx = at::empty_like(x);
    p_.norm.input_gradient(dx, dnormed, x, saved.get("statistics"), call);
    gradients.add(reads_, dx);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (call.options.single_stream) {
      for (const mesh::ParamId id : {p_.b2, p_.w2, p_.b1, p_.w1}) into.skip(id);
    } else {
      const bool everywhere = replicated_over_tp(call, tokens_);  // then a rank contributes for its part of the tokens
      const auto mine = [&](const at::Tensor& all) { return everywhere ? local_tokens(all, call) : all; };
      const at::Tensor ds = mine(saved.take("ds")), dh = mine(saved.take("dh"));
      into.add(p_.b2, ds.sum(0));
      into.outer(p_.w2, mine(saved.take("a")), ds);
      into.add(p_.b1, dh.sum(0));
      into.outer(p_.w1, mine(saved.take("z").flatten(1)), dh);
    }
    const at::Tensor dnormed = saved.take("dnormed"), x = saved.take("x"), statistics = saved.take("statistics");
    if (!streams_.along_tp && replicated_over_tp(call, tokens_))
      local_weight_gradient(p_.norm, into, dnormed, x, statistics, call);
    else
      p_.norm.weight_gradient(into, dnormed, x, statistics, call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor n = p_.norm.plain(values.get(reads_), call);
    const MixerWeights weights{weight(p_.w1, call), weight(p_.b1, call), weight(p_.w2, call), weight(p_.b2, call)};
    values.put(writes_, call.options.single_stream ? n : mix_streams(n, weights, streams_.smoothing));
  }

 private:
  static at::Tensor weight(mesh::ParamId id, const Call& call) { return call.weights.get(id); }
  at::Tensor smoothed(const at::Tensor& s) const {
    return s * (1 - streams_.smoothing) + streams_.smoothing / static_cast<double>(streams_.count);
  }
  // The tokens of one stream.
  BatchShape tokens_of(const at::Tensor& x, const Call& call) const {
    return call.slice.length > 0 ? batch_shape(x, call) : BatchShape{x.size(0) / streams_.count, x.size(1)};
  }
  // How the rows of all streams lie along tp.
  TokenLayout rows_layout() const { return streams_.along_tp ? TokenLayout::sharded : tokens_; }
  static mesh::Interval own(const BatchShape& all, const Call& call) {
    const comm::Group* tp = call.axes.find("tp");
    return mesh::even_part(all.tokens(), tp->size(), tp->rank());
  }

  StreamShape streams_;
  TokenLayout tokens_;
  std::string reads_, writes_;
  MixerParts p_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_repeat_block(const DecoderShape& shape, std::string reads, std::string writes) {
  return std::make_unique<RepeatBlock>(shape, std::move(reads), std::move(writes));
}

std::unique_ptr<Block> make_streamed_block(const DecoderShape& shape, std::unique_ptr<Block> block) {
  return std::make_unique<StreamedBlock>(shape, std::move(block));
}

std::unique_ptr<Block> make_mixer_block(const DecoderShape& shape, std::string reads, std::string writes, MixerParts parts) {
  return std::make_unique<MixerBlock>(shape, std::move(reads), std::move(writes), std::move(parts));
}

}  // namespace cairn::model
