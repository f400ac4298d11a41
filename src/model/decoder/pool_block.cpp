// The last block of an encoder: vectors of texts.
//
//   h = norm(x)                      [tokens, embed], gathered over tp
//   v_k = sum over t of pool_kt h_t  [vectors, embed] for each sequence, in fp32
//
// The weights come with the batch, so one row may hold several texts, and last-token, mean and first-token pooling are the same block.
// Every rank along tp computes the same vectors and is given the same gradient of them; each takes that of its own tokens.

#include <utility>

#include <ATen/ops/bmm.h>

#include "kernels/aten.h"
#include "model/decoder/blocks.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/wiring.h"

namespace cairn::model {
namespace {

class PoolBlock final : public Block {
 public:
  PoolBlock(const DecoderShape& shape, std::string reads, std::optional<Norm> norm)
      : reads_(std::move(reads)), stream_(token_layout(shape)), norm_(std::move(norm)) {
    const double embed = static_cast<double>(shape.embed);
    card_ = {.name = "pool", .reads = {reads_}, .writes = {"vectors"}, .optional_reads = {"pool"}};
    if (norm_)
      card_.operations.push_back({.name = "norm",
                                  .kind = BlockOp::Kind::norm,
                                  .parameters = norm_->parameters(),
                                  .axes = {"embed"},
                                  .flops_per_token = 4 * embed,
                                  .saved_elements_per_token = 2 * embed});
    card_.operations.push_back({.name = "pool", .axes = {"embed"}, .flops_per_token = 2 * embed, .by_sample = true});
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const BatchShape all = batch_shape(x, call);
    const Norm::Result normed = norm_ ? norm_->forward(x, call) : Norm::Result{x, {}};
    const at::Tensor hidden = gather_tokens(rows(normed.y), all, call, card_.name, {}, stream_);
    values.put("vectors", pooled(hidden.view({all.batch, all.length, -1}), values));
    if (!keep) return;
    keep->put("x", x);
    if (norm_) keep->put("statistics", normed.statistics);
    if (values.has("pool")) keep->put("pool", values.get("pool"));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor x = saved.get("x");
    at::Tensor dhidden = gradients.take("vectors");
    if (saved.has("pool")) dhidden = at::bmm(saved.take("pool").to(dhidden.scalar_type()).transpose(1, 2), dhidden);
    dhidden = rows(dhidden.to(x.scalar_type()).contiguous());
    const bool has_all = layout_in(call, stream_) == TokenLayout::replicated;
    const at::Tensor dnormed = (has_all ? dhidden : local_tokens(dhidden, call)).view(x.sizes());
    if (!norm_) return gradients.add(reads_, dnormed);
    const at::Tensor dx = at::empty_like(x);
    norm_->input_gradient(dx, dnormed, x, saved.get("statistics"), call);
    saved.put("dnormed", dnormed);
    gradients.add(reads_, dx);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (!norm_) return;
    if (layout_in(call, stream_) == TokenLayout::replicated)
      local_weight_gradient(*norm_, into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
    else
      norm_->weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    values.put("vectors", pooled(norm_ ? norm_->plain(x, call) : x, values));
  }

 private:
  static at::Tensor pooled(const at::Tensor& hidden, Values& values) {
    const at::Tensor exact = hidden.scalar_type() == at::kDouble ? hidden : hidden.to(at::kFloat);
    return values.has("pool") ? at::bmm(values.get("pool").to(exact.scalar_type()), exact) : exact;
  }

  std::string reads_;
  TokenLayout stream_;
  std::optional<Norm> norm_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_pool_block(const DecoderShape& shape, std::string reads, std::optional<Norm> norm) {
  return std::make_unique<PoolBlock>(shape, std::move(reads), std::move(norm));
}

}  // namespace cairn::model
