// The two ends of a Llama: tokens to hidden states, and hidden states to logits.

#include "kernels/embedding.h"
#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "model/llama.h"
#include "model/llama_blocks.h"
#include "model/plain_ops.h"
#include "model/rows.h"

namespace cairn::model {
namespace {

class Embedding final : public Block {
 public:
  Embedding(const LlamaShape& shape, mesh::ParamId table) : embed_(shape.embed), table_(table) {
    card_ = {
        .name = "embedding",
        .reads = {"tokens"},
        .writes = {"hidden.0"},
        .operations = {
            {.name = "lookup", .kind = Operation::Kind::lookup, .parameters = {table}, .axes = {"embed"}, .saved_elements_per_token = 1}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");  // [batch, length]
    const at::Tensor table = call.weights.get(table_);
    const at::Tensor hidden = at::empty({tokens.size(0), tokens.size(1), embed_}, table.options());
    kernels::embedding(hidden, table, tokens);
    values.put("hidden.0", hidden);
    if (keep) keep->put("tokens", tokens);
  }

  void backward_input(Values& gradients, Saved& saved, const Call&) const override { saved.put("dhidden", gradients.take("hidden.0")); }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    into.add_rows(table_, saved.take("tokens").reshape({-1}), rows(saved.take("dhidden")));
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");
    values.put("hidden.0", call.weights.get(table_).index_select(0, tokens.reshape({-1})).view({tokens.size(0), tokens.size(1), embed_}));
  }

 private:
  int64_t embed_;
  mesh::ParamId table_;
  Card card_;
};

class Head final : public Block {
 public:
  Head(const LlamaShape& shape, std::string reads, mesh::ParamId norm, mesh::ParamId head)
      : shape_(shape), reads_(std::move(reads)), norm_(norm), head_(head) {
    const double embed = static_cast<double>(shape.embed), vocab = static_cast<double>(shape.vocab);
    card_ = {.name = "head",
             .reads = {reads_},
             .writes = {"logits"},
             .operations = {{.name = "norm",
                             .kind = Operation::Kind::norm,
                             .parameters = {norm},
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = 2 * embed},
                            {.name = "logits",
                             .kind = Operation::Kind::product,
                             .parameters = {head},
                             .axes = {"vocab"},
                             .flops_per_token = 2 * embed * vocab,
                             .saved_elements_per_token = vocab}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // [batch, length, embed]
    const at::Tensor normed = at::empty_like(x), rstd = at::empty({x.numel() / shape_.embed}, x.options());
    kernels::rms_norm(normed, rstd, x, call.weights.get(norm_), shape_.norm_eps);
    const at::Tensor logits = at::empty({x.size(0), x.size(1), shape_.vocab}, x.options());
    kernels::linear(rows(logits), rows(normed), call.weights.get(head_));
    values.put("logits", logits);
    if (!keep) return;
    keep->put("x", x);
    keep->put("normed", normed);
    keep->put("rstd", rstd);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dlogits = gradients.take("logits"), x = saved.get("x");
    const at::Tensor dnormed = at::empty_like(x), dx = at::empty_like(x);
    kernels::linear_input(rows(dnormed), rows(dlogits), call.weights.get(head_));
    kernels::rms_norm_input(dx, dnormed, x, call.weights.get(norm_), saved.get("rstd"));
    gradients.add(reads_, dx);
    saved.put("dlogits", dlogits);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    into.outer(head_, rows(saved.take("normed")), rows(saved.take("dlogits")));
    const at::Tensor x = saved.take("x"), dnorm = at::empty({shape_.embed}, x.options());
    kernels::rms_norm_weight(dnorm, saved.take("dnormed"), x, saved.take("rstd"));
    into.add(norm_, dnorm);
  }

  void plain(Values& values, const Call& call) const override {
    values.put("logits",
               at::matmul(plain_rms_norm(values.get(reads_), call.weights.get(norm_), shape_.norm_eps), call.weights.get(head_).t()));
  }

 private:
  LlamaShape shape_;
  std::string reads_;
  mesh::ParamId norm_, head_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_llama_embedding(const LlamaShape& shape, mesh::ParamId table) {
  return std::make_unique<Embedding>(shape, table);
}

std::unique_ptr<Block> make_llama_head(const LlamaShape& shape, std::string reads, mesh::ParamId norm, mesh::ParamId head) {
  return std::make_unique<Head>(shape, std::move(reads), norm, head);
}

}  // namespace cairn::model
