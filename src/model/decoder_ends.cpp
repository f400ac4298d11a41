// The two ends of a decoder: tokens to hidden states, and hidden states to logits.

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/embedding.h"
#include "model/decoder_blocks.h"
#include "model/rows.h"

namespace cairn::model {
namespace {

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const DecoderShape& shape, mesh::ParamId table, std::optional<mesh::ParamId> positions)
      : embed_(shape.embed), length_(shape.length), table_(table), positions_(positions) {
    card_ = {
        .name = "embedding",
        .reads = {"tokens"},
        .writes = {"hidden.0"},
        .operations = {
            {.name = "lookup", .kind = Operation::Kind::lookup, .parameters = {table}, .axes = {"embed"}, .saved_elements_per_token = 1}}};
    if (!positions) return;
    card_.may_read = {"positions"};
    card_.operations.push_back({.name = "positions",
                                .kind = Operation::Kind::lookup,
                                .parameters = {*positions},
                                .axes = {"embed"},
                                .flops_per_token = static_cast<double>(embed_),
                                .saved_elements_per_token = 1});
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");  // [batch, length]
    const at::Tensor table = call.weights.get(table_);
    const at::Tensor hidden = at::empty({tokens.size(0), tokens.size(1), embed_}, table.options());
    kernels::embedding(hidden, table, tokens);
    if (positions_) {
      const at::Tensor places = places_of(values, tokens, call), added = at::empty_like(hidden);
      kernels::embedding(added, call.weights.get(*positions_), places);
      hidden.add_(added);
      if (keep) keep->put("places", places);
    }
    values.put("hidden.0", hidden);
    if (keep) keep->put("tokens", tokens);
  }

  void backward_input(Values& gradients, Saved& saved, const Call&) const override { saved.put("dhidden", gradients.take("hidden.0")); }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor dhidden = rows(saved.take("dhidden"));
    if (positions_) into.add_rows(*positions_, saved.take("places").reshape({-1}), dhidden);
    into.add_rows(table_, saved.take("tokens").reshape({-1}), dhidden);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");
    const auto pick = [&](mesh::ParamId id, const at::Tensor& ids) {
      return call.weights.get(id).index_select(0, ids.reshape({-1})).view({tokens.size(0), tokens.size(1), embed_});
    };
    const at::Tensor hidden = pick(table_, tokens);
    values.put("hidden.0", positions_ ? hidden + pick(*positions_, places_of(values, tokens, call)) : hidden);
  }

 private:
  // The position of each token [batch, length]: as the batch says, or one after the other.
  at::Tensor places_of(Values& values, const at::Tensor& tokens, const Call& call) const {
    if (values.has("positions")) return values.get("positions");
    const int64_t begin = call.slice.begin, end = begin + tokens.size(1);
    CAIRN_CHECK(end <= length_, "position {} in a table of {}", end - 1, length_);
    return at::arange(begin, end, tokens.options()).unsqueeze(0).expand({tokens.size(0), -1}).contiguous();
  }

  int64_t embed_, length_;
  mesh::ParamId table_;
  std::optional<mesh::ParamId> positions_;
  Card card_;
};

class HeadBlock final : public Block {
 public:
  HeadBlock(const DecoderShape& shape, std::string reads, Norm norm, Linear head)
      : vocab_(shape.vocab), reads_(std::move(reads)), norm_(std::move(norm)), head_(std::move(head)) {
    const double embed = static_cast<double>(shape.embed), vocab = static_cast<double>(shape.vocab);
    card_ = {.name = "head",
             .reads = {reads_},
             .writes = {"logits"},
             .operations = {{.name = "norm",
                             .kind = Operation::Kind::norm,
                             .parameters = norm_.parameters(),
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = 2 * embed},
                            {.name = "logits",
                             .kind = Operation::Kind::product,
                             .parameters = head_.parameters(),
                             .axes = {"vocab"},
                             .flops_per_token = 2 * embed * vocab,
                             .saved_elements_per_token = vocab}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // [batch, length, embed]
    const Norm::Result normed = norm_.forward(x, call);
    const at::Tensor logits = at::empty({x.size(0), x.size(1), vocab_}, x.options());
    head_.forward(rows(logits), rows(normed.y), call);
    values.put("logits", logits);
    if (!keep) return;
    keep->put("x", x);
    keep->put("normed", normed.y);
    keep->put("statistics", normed.statistics);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dlogits = gradients.take("logits"), x = saved.get("x");
    const at::Tensor dnormed = at::empty_like(x), dx = at::empty_like(x);
    head_.input_gradient(rows(dnormed), rows(dlogits), call);
    norm_.input_gradient(dx, dnormed, x, saved.get("statistics"), call);
    gradients.add(reads_, dx);
    saved.put("dlogits", dlogits);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    head_.weight_gradient(into, rows(saved.take("normed")), rows(saved.take("dlogits")), call);
    norm_.weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    values.put("logits", head_.plain(norm_.plain(values.get(reads_), call), call));
  }

 private:
  int64_t vocab_;
  std::string reads_;
  Norm norm_;
  Linear head_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const DecoderShape& shape, mesh::ParamId table, std::optional<mesh::ParamId> positions) {
  return std::make_unique<EmbeddingBlock>(shape, table, positions);
}

std::unique_ptr<Block> make_head_block(const DecoderShape& shape, std::string reads, Norm norm, Linear head) {
  return std::make_unique<HeadBlock>(shape, std::move(reads), std::move(norm), std::move(head));
}

}  // namespace cairn::model
