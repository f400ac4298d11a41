// With p the values of a patch, the stream of a picture is
//
//   x_0 = token + position_0        x_i = p_i w^T + b + position_i
//
// and the logits are norm(x_0) w_head^T + b_head after the last layer. Along tp every rank computes the embedding of all tokens and keeps
// those that are its own; the parameters are whole on every rank, so each contributes the gradients of its own tokens, and of its own part
// of the pictures in the head.
#include "model/vision/patch_blocks.h"

#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/low_precision.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"
#include "model/decoder/wiring.h"

namespace cairn::model {
namespace {

// Per token of the stream, of something that a picture has once.
double once_per_picture(double cost, const PatchInput& input) { return cost / static_cast<double>(input.positions()); }

class PatchEmbeddingBlock final : public Block {
 public:
  PatchEmbeddingBlock(const DecoderShape& shape, PatchParts parts)
      : input_(shape.pictures), embed_(shape.embed), dropout_(shape.dropout), stream_(token_layout(shape)), parts_(parts) {
    const auto values = static_cast<double>(input_.values()), embed = static_cast<double>(embed_);
    const double patches = static_cast<double>(input_.patches());
    card_ = {.name = "embedding",
             .reads = {"pixels"},
             .writes = {kWrites},
             .operations = {{.name = "patches",
                             .parameters = {parts.token, parts.positions, parts.projection, parts.bias},
                             .axes = {"embed"},
                             .flops_per_token = once_per_picture(2 * values * embed * patches, input_),
                             .saved_elements_per_token = once_per_picture(values * patches, input_),
                             .width = embed_}},
             .streams = {{kWrites, stream_}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor projection = matrix(call);
    const at::Tensor patches = patches_of(values.get("pixels")).to(projection.scalar_type());
    const BatchShape all{patches.size(0) / input_.patches(), input_.positions()};
    const at::Tensor stream = at::empty({all.batch, all.length, embed_}, patches.options());
    const at::Tensor made = at::empty({patches.size(0), embed_}, patches.options());
    kernels::linear(made, patches, projection);
    const at::Tensor position = call.weights.get(parts_.positions).view({all.length, embed_});
    stream.select(1, 0).copy_(call.weights.get(parts_.token).view({1, embed_}) + position.narrow(0, 0, 1));
    at::Tensor of_patches = stream.narrow(1, 1, input_.patches());
    of_patches.copy_(made.view({all.batch, -1, embed_}));
    of_patches.add_(position.narrow(0, 1, input_.patches()) + call.weights.get(parts_.bias));
    at::Tensor hidden = rows(stream);
    if (call.axes.find("tp") && layout_in(call, stream_) == TokenLayout::sharded) hidden = local_tokens(hidden, call).clone();
    apply_dropout(hidden, dropout_, call, card_.name, stream_);
    values.put(kWrites, as_stream(hidden, all, call, stream_));
    if (keep) keep->put("patches", patches);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dhidden = dropout_ > 0 ? gradients.take(kWrites).clone() : gradients.take(kWrites);
    apply_dropout(rows(dhidden), dropout_, call, card_.name, stream_);
    saved.put("dhidden", dhidden);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    const at::Tensor patches = saved.take("patches");
    const at::Tensor dstream = whole_gradient(saved.take("dhidden"), patches, call);  // [batch, positions, embed]
    const at::Tensor dpatches = dstream.narrow(1, 1, input_.patches());
    const at::Tensor flat = dpatches.reshape({-1, embed_});
    into.add_sum(parts_.bias, flat);
    at::Tensor dprojection = at::empty({embed_, input_.values()}, widened_options(flat));
    kernels::linear_backward_weight(dprojection, flat, patches, /*accumulate=*/false);
    into.add(parts_.projection, dprojection.view({embed_, input_.channels, input_.patch, input_.patch}));
    const at::Tensor dposition = kernels::widened(dstream).sum(0);
    into.add(parts_.positions, dposition.unsqueeze(0));
    into.add(parts_.token, dposition.narrow(0, 0, 1).unsqueeze(0));
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor patches = patches_of(values.get("pixels"));
    const int64_t batch = patches.size(0) / input_.patches();
    const at::Tensor made = at::matmul(patches, matrix(call).t()) + call.weights.get(parts_.bias);
    const at::Tensor token = call.weights.get(parts_.token).expand({batch, 1, embed_});
    values.put(kWrites, at::cat(at::TensorList{token, made.view({batch, -1, embed_})}, 1) + call.weights.get(parts_.positions));
  }

 private:
  static constexpr const char* kWrites = "hidden.0";

  at::Tensor matrix(const Call& call) const { return call.weights.get(parts_.projection).view({embed_, input_.values()}); }

  static at::TensorOptions widened_options(const at::Tensor& x) {
    return kernels::is_half_precision(x) ? x.options().dtype(at::kFloat) : x.options();
  }

  // [batch * patches, channels * patch * patch], in the order of a convolution's weight.
  at::Tensor patches_of(const at::Tensor& pixels) const {
    const int64_t n = input_.per_side(), patch = input_.patch;
    CAIRN_CHECK(pixels.dim() == 4 && pixels.size(1) == input_.channels && pixels.size(2) == input_.size && pixels.size(3) == input_.size,
                "pictures of {} x {} pixels in a model for {} x {}", pixels.size(-2), pixels.size(-1), input_.size, input_.size);
    return pixels.view({-1, input_.channels, n, patch, n, patch}).permute({0, 2, 4, 1, 3, 5}).reshape({-1, input_.values()});
  }

  // The gradient of the stream with zeros where tokens are another rank's.
  at::Tensor whole_gradient(const at::Tensor& dhidden, const at::Tensor& patches, const Call& call) const {
    const int64_t batch = patches.size(0) / input_.patches();
    if (!call.axes.find("tp")) return dhidden.view({batch, input_.positions(), embed_});
    const at::Tensor whole = at::zeros({batch * input_.positions(), embed_}, dhidden.options()), own = local_tokens(whole, call);
    own.copy_(layout_in(call, stream_) == TokenLayout::sharded ? rows(dhidden) : local_tokens(rows(dhidden), call));
    return whole.view({batch, input_.positions(), embed_});
  }

  PatchInput input_;
  int64_t embed_;
  double dropout_;
  TokenLayout stream_;
  PatchParts parts_;
  Card card_;
};

class ClassHeadBlock final : public Block {
 public:
  ClassHeadBlock(const DecoderShape& shape, std::string reads, ClassHeadParts parts)
      : input_(shape.pictures),
        embed_(shape.embed),
        classes_(shape.vocab),
        reads_(std::move(reads)),
        stream_(token_layout(shape)),
        parts_(std::move(parts)) {
    const auto embed = static_cast<double>(embed_), classes = static_cast<double>(classes_);
    card_ = {.name = "head",
             .reads = {reads_},
             .writes = {"logits"},
             .operations = {{.name = "norm",
                             .kind = BlockOp::Kind::norm,
                             .parameters = parts_.norm.parameters(),
                             .axes = {"embed"},
                             .flops_per_token = once_per_picture(4 * embed, input_),
                             .saved_elements_per_token = once_per_picture(2 * embed, input_),
                             .width = embed_},
                            {.name = "logits",
                             .kind = BlockOp::Kind::product,
                             .parameters = {parts_.weight, parts_.bias},
                             .axes = {"classes"},
                             .flops_per_token = once_per_picture(2 * embed * classes, input_),
                             .saved_elements_per_token = once_per_picture(classes, input_)}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const at::Tensor token = class_tokens(x, call);
    const Norm::Result normed = parts_.norm.forward(token, call);
    const at::Tensor logits = at::empty({token.size(0), classes_}, token.options());
    kernels::linear(logits, normed.y, call.weights.get(parts_.weight));
    logits.add_(call.weights.get(parts_.bias));
    values.put("logits", logits);
    if (!keep) return;
    keep->put("token", token);
    keep->put("normed", normed.y);
    keep->put("statistics", normed.statistics);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dlogits = gradients.take("logits").contiguous(), token = saved.get("token");
    const at::Tensor dnormed = at::empty_like(token), dtoken = at::empty_like(token);
    kernels::linear_backward_input(dnormed, dlogits, call.weights.get(parts_.weight));
    parts_.norm.input_gradient(dtoken, dnormed, token, saved.get("statistics"), call);
    const BatchShape all{token.size(0), input_.positions()};
    const at::Tensor whole = at::zeros({all.tokens(), embed_}, token.options());
    whole.view({all.batch, all.length, embed_}).select(1, 0).copy_(dtoken);
    const bool sharded = layout_in(call, stream_) == TokenLayout::sharded;
    gradients.add(reads_, as_stream(sharded ? local_tokens(whole, call).contiguous() : whole, all, call, stream_));
    saved.put("dlogits", dlogits);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    const at::Tensor dlogits = local_tokens(saved.take("dlogits"), call);
    into.add_sum(parts_.bias, dlogits);
    into.outer(parts_.weight, local_tokens(saved.take("normed"), call), dlogits);
    local_weight_gradient(parts_.norm, into, saved.take("dnormed"), saved.take("token"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor token = parts_.norm.plain(values.get(reads_).select(1, 0), call);
    values.put("logits", at::linear(token, call.weights.get(parts_.weight), call.weights.get(parts_.bias)));
  }

 private:
  // [batch, embed], on every rank.
  at::Tensor class_tokens(const at::Tensor& x, const Call& call) const {
    if (layout_in(call, stream_) == TokenLayout::replicated || !call.axes.find("tp")) return x.select(1, 0).contiguous();
    const BatchShape all = batch_shape(x, call);
    const at::Tensor whole = at::zeros({all.tokens(), embed_}, x.options());
    local_tokens(whole, call).copy_(rows(x));
    const at::Tensor token = whole.view({all.batch, all.length, embed_}).select(1, 0).contiguous();
    all_reduce_tp(token, call, card_.name).wait();
    return token;
  }

  PatchInput input_;
  int64_t embed_, classes_;
  std::string reads_;
  TokenLayout stream_;
  ClassHeadParts parts_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_patch_embedding_block(const DecoderShape& shape, PatchParts parts) {
  return std::make_unique<PatchEmbeddingBlock>(shape, parts);
}

std::unique_ptr<Block> make_class_head_block(const DecoderShape& shape, std::string reads, ClassHeadParts parts) {
  return std::make_unique<ClassHeadBlock>(shape, std::move(reads), std::move(parts));
}

}  // namespace cairn::model
