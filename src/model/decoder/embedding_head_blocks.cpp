// The first and the last block of a decoder: tokens to hidden states, and hidden states to logits.
//
// The head has a chunked form (chunked cross entropy, train.loss_chunks): instead of logits it writes a ChunkedLogits. For each chunk of
// rows, compute() makes logits = in w^T in a buffer that all chunks share; the loss turns them into dlogits; accept_gradient() computes
// din = dlogits w and adds dlogits^T in to the weight gradient. So logits and their gradient need memory for one chunk only, and the weight
// gradient is complete before the block's backward calls (Call::into). Along tp each rank has the chunk's logits of its part of the
// vocabulary, for all tokens; din is then summed over tp like that of whole logits. A loss that needs all rows before it knows a gradient
// (DPO) calls compute() twice for each chunk.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "mesh/chunked_gradients.h"
#include "model/decoder/blocks.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/wiring.h"

namespace cairn::model {
namespace {

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const DecoderShape& shape, mesh::ParamId table, std::optional<mesh::ParamId> positions, std::string writes)
      : embed_(shape.embed),
        vocab_(shape.vocab),
        length_(shape.length),
        dropout_(shape.dropout),
        stream_(token_layout(shape)),
        table_(table),
        positions_(positions),
        writes_(std::move(writes)) {
    card_ = {
        .name = "embedding",
        .reads = {"tokens"},
        .writes = {writes_},
        .optional_reads = {"perturbation"},
        .operations = {
            {.name = "lookup", .kind = BlockOp::Kind::lookup, .parameters = {table}, .axes = {"embed"}, .saved_elements_per_token = 1}}};
    card_.streams = {{writes_, stream_}};
    if (!positions) return;
    card_.optional_reads = {"perturbation", "positions"};
    card_.operations.push_back({.name = "positions",
                                .kind = BlockOp::Kind::lookup,
                                .parameters = {*positions},
                                .axes = {"embed"},
                                .flops_per_token = static_cast<double>(embed_),
                                .saved_elements_per_token = 1,
                                .reads = {"positions"}});
    card_.operations.push_back({.name = "add", .kind = BlockOp::Kind::add, .axes = {"embed"}, .reads = {"lookup", "positions"}});
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");  // [batch, length]
    const BatchShape all{tokens.size(0), tokens.size(1)};
    const at::Tensor hidden = reduce_scatter_tokens(look_up(tokens.reshape({-1}), call), call, card_.name, {}, stream_);
    if (positions_) {
      const at::Tensor all_places = places_of(values, tokens, call).view({-1, 1}), added = at::empty_like(hidden);
      const at::Tensor places =
          (layout_in(call, stream_) == TokenLayout::replicated ? all_places : local_tokens(all_places, call)).flatten();
      kernels::embedding(added, call.weights.get(*positions_), places);
      hidden.add_(added);
      if (keep) keep->put("places", places);
    }
    if (values.has("perturbation")) {  // [positions, embed]: the same for every sample
      CAIRN_CHECK(hidden.size(0) == all.tokens(), "a perturbation of {} tokens, of which this rank holds {}", all.tokens(), hidden.size(0));
      const at::Tensor perturbation = values.get("perturbation");
      hidden.view({all.batch, all.length, embed_}).add_(perturbation.narrow(0, 0, all.length));
      if (keep) keep->put("perturbation", perturbation);
    }
    apply_dropout(hidden, dropout_, call, card_.name, stream_);
    values.put(writes_, as_stream(hidden, all, call, stream_));
    if (keep) keep->put("tokens", tokens);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dhidden = dropout_ > 0 ? gradients.take(writes_).clone() : gradients.take(writes_);
    apply_dropout(rows(dhidden), dropout_, call, card_.name, stream_);
    if (saved.has("perturbation")) {
      const at::Tensor gradient = at::zeros_like(saved.take("perturbation"));
      gradient.narrow(0, 0, dhidden.size(1)).copy_(dhidden.sum(0, /*keepdim=*/false, gradient.scalar_type()));
      gradients.add("perturbation", gradient);
    }
    saved.put("gathered", gather_tokens(rows(dhidden), batch_shape(dhidden, call), call, card_.name, {}, stream_));
    saved.put("dhidden", dhidden);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (positions_) {
      const at::Tensor places = saved.take("places"), dhidden = rows(saved.take("dhidden"));
      layout_in(call, stream_) == TokenLayout::replicated
          ? into.add_rows(*positions_, local_tokens(places.unsqueeze(1), call).flatten(), local_tokens(dhidden, call))
          : into.add_rows(*positions_, places, dhidden);
    }
    const at::Tensor tokens = saved.take("tokens").reshape({-1}), gathered = saved.take("gathered");
    const mesh::Interval here = local_rows(table_, vocab_, call);
    if (here.length() == vocab_) return into.add_rows(table_, tokens, gathered);
    const at::Tensor mine = tokens.ge(here.begin).logical_and_(tokens.lt(here.end)).nonzero().flatten();
    into.add_rows(table_, tokens.index_select(0, mine) - here.begin, gathered.index_select(0, mine));
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");
    const auto pick = [&](mesh::ParamId id, const at::Tensor& ids) {
      return call.weights.get(id).index_select(0, ids.reshape({-1})).view({tokens.size(0), tokens.size(1), embed_});
    };
    at::Tensor hidden = pick(table_, tokens);
    if (positions_) hidden = hidden + pick(*positions_, places_of(values, tokens, call));
    if (values.has("perturbation")) hidden = hidden + values.get("perturbation").narrow(0, 0, tokens.size(1));
    values.put(writes_, hidden);
  }

 private:
  // The rows of the table for these ids; 0 for rows that another rank along tp holds.
  at::Tensor look_up(const at::Tensor& ids, const Call& call) const {
    const at::Tensor table = call.weights.get(table_), hidden = at::empty({ids.size(0), embed_}, table.options());
    const mesh::Interval here = local_rows(table_, vocab_, call);
    if (here.length() == vocab_) {
      kernels::embedding(hidden, table, ids);
      return hidden;
    }
    if (here.length() == 0) return hidden.zero_();
    const at::Tensor elsewhere = ids.lt(here.begin).logical_or_(ids.ge(here.end));
    kernels::embedding(hidden, table, (ids - here.begin).masked_fill_(elsewhere, 0));
    return hidden.masked_fill_(elsewhere.unsqueeze(1), 0);
  }

  // The position of each token [batch, length]: from the batch, or consecutive.
  at::Tensor places_of(Values& values, const at::Tensor& tokens, const Call& call) const {
    if (values.has("positions")) return values.get("positions");
    const int64_t begin = call.slice.begin, end = begin + tokens.size(1);
    CAIRN_CHECK(end <= length_, "position {} in a table of {}", end - 1, length_);
    return at::arange(begin, end, tokens.options()).unsqueeze(0).expand({tokens.size(0), -1}).contiguous();
  }

  int64_t embed_, vocab_, length_;
  double dropout_;
  TokenLayout stream_;
  mesh::ParamId table_;
  std::optional<mesh::ParamId> positions_;
  std::string writes_;
  Card card_;
};

class HeadBlock final : public Block {
 public:
  HeadBlock(const DecoderShape& shape, std::string reads, std::optional<Norm> norm, Linear head)
      : vocab_(shape.vocab), reads_(std::move(reads)), stream_(token_layout(shape)), norm_(std::move(norm)), head_(std::move(head)) {
    const double embed = static_cast<double>(shape.embed), vocab = static_cast<double>(shape.vocab);
    BlockOp logits{.name = "logits", .axes = {"vocab"}, .flops_per_token = 2 * embed * vocab, .saved_elements_per_token = vocab};
    head_.describe(logits);
    card_ = {.name = "head", .reads = {reads_}, .writes = {"logits"}, .optional_reads = {"targets"}};
    if (norm_)
      card_.operations.push_back({.name = "norm",
                                  .kind = BlockOp::Kind::norm,
                                  .parameters = norm_->parameters(),
                                  .axes = {"embed"},
                                  .flops_per_token = 4 * embed,
                                  .saved_elements_per_token = 2 * embed,
                                  .result_elements_per_token = embed,
                                  .recomputed_on_gpu = norm_->kind == Norm::Kind::rms});
    else
      logits.saved_elements_per_token += embed;
    card_.operations.push_back(std::move(logits));
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // the stream
    const BatchShape all = batch_shape(x, call);
    const bool in_chunks = call.options.loss_chunks > 1 || call.options.head_slice > 0;
    if (in_chunks && call.chunks_logits && (call.into || !keep)) {
      Operand from_norm;
      const Norm::Result normed = normed_of(x, call, head_.is_fp8(call) && !call.axes.find("tp") ? &from_norm.amax : nullptr);
      from_norm.values = gather_tokens(rows(normed.y), all, call, card_.name, {}, stream_);
      Value value{.chunked_logits = std::make_shared<HeadChunks>(
                      head_, from_norm, needs_only_codes(call), keep ? call.into : nullptr, call,
                      call.options.skip_unneeded_logits && values.has("targets") ? values.get("targets") : at::Tensor())};
      place(value, call);
      values.put("logits", std::move(value));
      if (!keep) return;
      keep->put("x", x);
      if (norm_) keep->put("statistics", normed.statistics);
      return;
    }
    Operand from_norm;
    const Norm::Result normed = normed_of(x, call, keep && head_.is_fp8(call) && !call.axes.find("tp") ? &from_norm.amax : nullptr);
    const at::Tensor logits = at::empty({all.batch, all.length, head_.out_width(call)}, x.options());
    Value value{.tensor = logits, .defers_gradient = call.needs.weights && needs_only_codes(call)};
    const auto project = [&](const at::Tensor& from, int64_t begin, int64_t count) {
      head_.forward(rows(logits).narrow(0, begin, count), from.narrow(0, begin, count), call,
                    keep && count == from.size(0) ? &from_norm : nullptr);
    };
    const at::Tensor in = gather_tokens(rows(normed.y), all, call, card_.name, project, stream_);
    place(value, call);
    values.put("logits", std::move(value));
    if (!keep) return;
    keep->put("x", x);
    if (from_norm.codes.defined() || !recomputes_norm(x, call)) from_norm.save(*keep, "in", in);
    if (norm_) keep->put("statistics", normed.statistics);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor x = saved.get("x");
    if (const std::shared_ptr<ChunkedLogits> parts = gradients.value("logits").chunked_logits) {
      gradients.drop("logits");
      const at::Tensor dnormed = reduce_scatter_tokens(parts->finish(), call, card_.name, {}, stream_);
      return backward_of_norm(gradients, saved, dnormed.view(x.sizes()), /*again=*/false, call);
    }
    Operand from_loss;
    from_loss.amax = gradients.value("logits").amax;
    const std::optional<DeferredLogitsGradient> deferred_gradient = gradients.value("logits").deferred_gradient;
    at::Tensor dlogits = rows(gradients.take("logits"));
    const at::Tensor din = at::empty({dlogits.size(0), x.size(-1)}, x.options());
    CAIRN_CHECK(!deferred_gradient || needs_only_codes(call), "{}: a deferred gradient, but the head does not make it", card_.name);
    if (needs_only_codes(call)) {
      if (deferred_gradient)
        from_loss.codes = kernels::cross_entropy_to_fp8(dlogits, deferred_gradient->lse, deferred_gradient->targets,
                                                        deferred_gradient->scale, from_loss.amax);
      else
        Linear::quantize_gradient(from_loss, dlogits);
      dlogits.reset();
    }
    const auto back = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
      head_.input_gradient(sums.narrow(0, begin, count), dlogits.defined() ? dlogits.narrow(0, begin, count) : dlogits, call,
                           count == sums.size(0) ? &from_loss : nullptr);
    };
    if (needs_only_codes(call)) back(din, 0, din.size(0));  // the codes are of all rows: nothing of this product overlaps with its sum
    const at::Tensor dnormed =
        reduce_scatter_tokens(din, call, card_.name, needs_only_codes(call) ? OnRows() : OnRows(back), stream_).view(x.sizes());
    backward_of_norm(gradients, saved, dnormed, /*again=*/!saved.has("in.codes"), call);
    from_loss.save(saved, "dlogits", dlogits, head_.needs_values());
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    // With chunked logits the weight gradient is complete already.
    if (saved.has("dlogits") || saved.has("dlogits.codes"))
      head_.weight_gradient(into, Operand::take(saved, "in"), Operand::take(saved, "dlogits"), call);
    if (!norm_) return;
    if (saved.has("dgain"))
      into.add(norm_->weight, saved.take("dgain"));
    else if (layout_in(call, stream_) == TokenLayout::replicated)
      local_weight_gradient(*norm_, into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
    else
      norm_->weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    values.put("logits", head_.plain(norm_ ? norm_->plain(x, call) : x, call));
  }

 private:
  Norm::Result normed_of(const at::Tensor& x, const Call& call, at::Tensor* amax) const {
    return norm_ ? norm_->forward(x, call, amax) : Norm::Result{x, {}};
  }

  // The chunked form of the head.
  class HeadChunks final : public ChunkedLogits {
   public:
    // `into` null: no gradients are asked for. `targets`: chunks without one are not computed; undefined: all are.
    HeadChunks(const Linear& head, const Operand& in, bool needs_only_codes, mesh::Gradients* into, const Call& call,
               const at::Tensor& targets)
        : head_(head),
          call_(call),
          in_(in.values),
          options_(in_.options()),
          rows_(in_.size(0)),
          amax_(in.amax),
          needs_only_codes_(needs_only_codes),
          parts_(chunk_count(rows_, call.options)),
          needed_(static_cast<size_t>(parts_), true) {
      if (targets.defined()) find_needed(targets);
      if (!into) return;
      din_ = at::empty_like(in_);
      for (int64_t part = 0; part < parts_; ++part)
        if (const auto [begin, count, needed] = rows(part); !needed) din_.narrow(0, begin, count).zero_();
      gradients_.emplace(*into, head.parameters(), std::count(needed_.begin(), needed_.end(), true));
    }

    int64_t chunks() const override { return parts_; }
    Rows rows(int64_t part) const override {
      const int64_t begin = rows_ * part / parts_;
      return {begin, rows_ * (part + 1) / parts_ - begin, needed_[static_cast<size_t>(part)]};
    }
    at::TensorOptions options() const override { return options_; }
    bool defers_gradient() const override { return needs_only_codes_; }

    at::Tensor compute(int64_t part) override {
      const auto [begin, count, needed] = rows(part);
      if (!logits_.defined()) logits_ = at::empty({(in_.size(0) + parts_ - 1) / parts_, head_.out_width(call_)}, in_.options());
      const at::Tensor made = logits_.narrow(0, 0, count);
      from_norm_ = {.values = in_.narrow(0, begin, count), .amax = amax_};
      head_.forward(made, from_norm_.values, call_, &from_norm_, &weight_codes_);
      return made;
    }

    void accept_gradient(int64_t part, const at::Tensor& amax, const DeferredLogitsGradient* deferred_gradient) override {
      const auto [begin, count, needed] = rows(part);
      Operand from_loss{.values = logits_.narrow(0, 0, count), .amax = amax};
      CAIRN_CHECK(!deferred_gradient || needs_only_codes_, "a deferred gradient, but the head does not make it");
      if (deferred_gradient)
        from_loss.codes = kernels::cross_entropy_to_fp8(from_loss.values, deferred_gradient->lse, deferred_gradient->targets,
                                                        deferred_gradient->scale, amax);
      head_.input_gradient(din_.narrow(0, begin, count), from_loss.values, call_, &from_loss, &weight_codes_);
      head_.weight_gradient(*gradients_, from_norm_, from_loss, call_);
      if (std::find(needed_.begin() + part + 1, needed_.end(), true) != needed_.end()) return;
      logits_.reset();
      in_.reset();
      from_norm_ = {};
      weight_codes_ = {};
    }

    at::Tensor finish() override {
      gradients_->flush();
      return din_;
    }
    int64_t bytes() const override {
      return static_cast<int64_t>((in_.defined() ? in_.nbytes() : 0) + (din_.defined() ? din_.nbytes() : 0));
    }

   private:
    // Where no row has a target, one chunk is computed all the same: the weight gets its gradient, which is 0.
    void find_needed(const at::Tensor& targets) {
      const at::Tensor found = targets.reshape({-1}).ne(kernels::kIgnoreTarget).to(at::kInt).cpu();
      const auto* has_target = found.const_data_ptr<int>();
      for (int64_t part = 0; part < parts_; ++part) {
        const auto [begin, count, needed] = rows(part);
        needed_[static_cast<size_t>(part)] = std::find(has_target + begin, has_target + begin + count, 1) != has_target + begin + count;
      }
      if (std::find(needed_.begin(), needed_.end(), true) == needed_.end()) needed_.front() = true;
    }
    static int64_t chunk_count(int64_t rows, const PassOptions& options) {
      const int64_t by_size = options.head_slice > 0 ? (rows + options.head_slice - 1) / options.head_slice : 1;
      return std::max<int64_t>(1, std::min(std::max(options.loss_chunks, by_size), rows));
    }
    const Linear& head_;
    const Call& call_;     // the pass outlives this
    at::Tensor in_, din_;  // of all tokens; the gradient: this rank's terms of its sum over tp
    at::TensorOptions options_;
    int64_t rows_;
    at::Tensor amax_ /*of in_*/, logits_;
    Operand from_norm_ = {};  // of the last chunk
    kernels::Fp8Matrix weight_codes_ = {};
    bool needs_only_codes_;  // HeadBlock's
    int64_t parts_;
    std::vector<bool> needed_;  // by chunk
    std::optional<mesh::ChunkedGradients> gradients_;
  };

  // Logits of a part of the vocabulary are sharded like the rows of the weight.
  void place(Value& value, const Call& call) const {
    if (head_.out_width(call) != vocab_) value.placement.axes = {{"tp", call.weights.placement(head_.weight).on("tp")}};
  }

  // `again`: the norm's output is needed for the head's weight gradient and is recomputed in the same kernel.
  void backward_of_norm(Values& gradients, Saved& saved, const at::Tensor& dnormed, bool again, const Call& call) const {
    if (!norm_) return gradients.add(reads_, dnormed);
    const at::Tensor x = saved.get("x");
    const at::Tensor dx = recomputes_norm(x, call) ? dnormed : at::empty_like(x);  // in place, where nothing else reads it
    Value handed_on{.tensor = dx};
    at::Tensor* amax = call.fp8() ? &handed_on.amax : nullptr;
    if (recomputes_norm(x, call)) {
      const at::Tensor y = again ? at::empty_like(x) : at::Tensor();
      saved.put("dgain", norm_->backward({dx, again ? &y : nullptr, amax}, dnormed, x, saved.get("statistics"), call));
      if (again) saved.put("in", rows(y));
    } else {
      norm_->input_gradient(dx, dnormed, x, saved.get("statistics"), call, nullptr, amax);
      saved.put("dnormed", dnormed);
    }
    gradients.add(reads_, std::move(handed_on));
  }

  // Whether only the fp8 codes of the gradient of logits are needed. Then that matrix, the largest of all, need not exist in bf16.
  bool needs_only_codes(const Call& call) const { return head_.is_fp8(call) && !head_.needs_values() && !call.axes.find("tp"); }

  // Whether the norm's backward kernel recomputes its output for free, so that it is not kept.
  bool recomputes_norm(const at::Tensor& x, const Call& call) const {
    return norm_ && !call.axes.find("tp") && norm_->has_fused_backward(x);
  }

  int64_t vocab_;
  std::string reads_;
  TokenLayout stream_;
  std::optional<Norm> norm_;
  Linear head_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const DecoderShape& shape, mesh::ParamId table, std::optional<mesh::ParamId> positions,
                                            std::string writes) {
  return std::make_unique<EmbeddingBlock>(shape, table, positions, std::move(writes));
}

std::unique_ptr<Block> make_head_block(const DecoderShape& shape, std::string reads, std::optional<Norm> norm, Linear head) {
  return std::make_unique<HeadBlock>(shape, std::move(reads), std::move(norm), std::move(head));
}

}  // namespace cairn::model
