// Bottleneck adapters: with n = norm(x), z = D n + b_D, a = m * act(z) (m is the dropout mask), y = onto [+ x] + s (U a + b_U). Backward of
// dy:
//
//   da = m * (s dy U),  dz = act'(z) da,  dx = norm'(dz D) [+ dy],  dU = s dy^T a,  db_U = s sum dy,  dD = dz^T n,  db_D = sum dz
//
// z and x are kept; n and a are recomputed.
#include "model/decoder/adapter_block.h"

#include <utility>

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"

namespace cairn::model {
namespace {

at::Tensor bottleneck_activation(AdapterStyle style, const at::Tensor& z) {
  return style == AdapterStyle::adaptformer ? at::gelu(z) : style == AdapterStyle::pfeiffer ? at::relu(z) : at::silu(z);
}

at::Tensor bottleneck_activation_gradient(AdapterStyle style, const at::Tensor& da, const at::Tensor& z) {
  return style == AdapterStyle::adaptformer ? at::gelu_backward(da, z)
         : style == AdapterStyle::pfeiffer  ? at::threshold_backward(da, z, 0)
                                            : at::silu_backward(da, z);
}

class AdapterBlock final : public Block {
 public:
  AdapterBlock(const DecoderShape& shape, const AdapterShape& adapter, AdapterIo io, AdapterBlockParts parts)
      : io_(std::move(io)),
        parts_(std::move(parts)),
        style_(adapter.style),
        behind_(adapter.behind_branches()),
        rank_(adapter.rank),
        scale_(adapter.scale()),
        dropout_(adapter.dropout) {
    const auto embed = static_cast<double>(shape.embed), rank = static_cast<double>(adapter.rank);
    BlockOp narrow{.name = "adapter",
                   .axes = {"embed"},
                   .flops_per_token = 4 * embed * rank,
                   .saved_elements_per_token = rank,
                   .reads = {"norm"},
                   .width = shape.embed};
    for (const AdapterMatrix* one : {&parts_.down, &parts_.up})
      for (const mesh::ParamId& id : one->parameters()) narrow.parameters.push_back(id);
    BlockOp add{.name = "add", .kind = BlockOp::Kind::add, .axes = {"embed"}, .reads = {"adapter", io_.onto}};
    if (behind_) add.reads.push_back(io_.reads);
    card_ = {.name = io_.name,
             .reads = {io_.reads, io_.onto},
             .writes = {io_.writes},
             .operations = {{.name = "norm",
                             .kind = BlockOp::Kind::norm,
                             .parameters = parts_.norm.parameters(),
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = behind_ ? embed : 0},  // beside a branch, the branch keeps its input anyway
                            std::move(narrow),
                            std::move(add)},
             .streams = {{io_.writes, TokenLayout::sharded}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(io_.reads), onto = values.get(io_.onto);
    const Norm::Result normed = parts_.norm.forward(x, call);
    const at::Tensor z = projected(rows(normed.y), parts_.down, call);
    const at::Tensor y = at::empty({z.size(0), x.size(-1)}, x.options());
    kernels::linear(y, dropped(z, call), parts_.up.weight(call));
    y.add_(parts_.up.bias(call)).mul_(scale_).add_(rows(onto));
    if (behind_) y.add_(rows(x));
    values.put(io_.writes, y.view(x.sizes()));
    if (keep) keep->put("x", x), keep->put("statistics", normed.statistics), keep->put("z", z);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(io_.writes), x = saved.get("x"), z = saved.get("z");
    gradients.add(io_.onto, dy);
    const at::Tensor dout = rows(dy) * scale_;
    const at::Tensor da = at::empty({z.size(0), rank_}, z.options());
    kernels::linear_backward_input(da, dout, parts_.up.weight(call));
    apply_dropout(da, dropout_, call, io_.name);
    const at::Tensor dz = bottleneck_activation_gradient(style_, da, z);
    const at::Tensor dnormed = at::empty({z.size(0), x.size(-1)}, x.options());
    kernels::linear_backward_input(dnormed, dz, parts_.down.weight(call));
    const at::Tensor dx = at::empty_like(x);
    parts_.norm.input_gradient(dx, dnormed.view(x.sizes()), x, saved.get("statistics"), call, behind_ ? &dy : nullptr);
    gradients.add(io_.reads, dx);
    saved.put("dout", dout), saved.put("dz", dz), saved.put("dnormed", dnormed.view(x.sizes()));
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    const at::Tensor x = saved.take("x"), statistics = saved.take("statistics"), dnormed = saved.take("dnormed");
    const bool replicated = replicated_over_tp(call, TokenLayout::sharded);
    const auto own = [&](const at::Tensor& all) { return replicated ? local_tokens(all, call) : all; };
    const at::Tensor dout = own(saved.take("dout")), dz = own(saved.take("dz"));
    parts_.up.outer(into, own(dropped(saved.take("z"), call)), dout, call);
    parts_.up.add_bias_gradient(into, dout, call);
    parts_.down.outer(into, own(rows(parts_.norm.forward(x, call).y)), dz, call);
    parts_.down.add_bias_gradient(into, dz, call);
    if (replicated) return local_weight_gradient(parts_.norm, into, dnormed, x, statistics, call);
    parts_.norm.weight_gradient(into, dnormed, x, statistics, call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(io_.reads);
    const at::Tensor z = at::linear(parts_.norm.plain(x, call), parts_.down.weight(call), parts_.down.bias(call));
    at::Tensor y =
        values.get(io_.onto) + scale_ * at::linear(bottleneck_activation(style_, z), parts_.up.weight(call), parts_.up.bias(call));
    if (behind_) y = y + x;
    values.put(io_.writes, y);
  }

 private:
  static at::Tensor projected(const at::Tensor& x, const AdapterMatrix& matrix, const Call& call) {
    const at::Tensor w = matrix.weight(call), y = at::empty({x.size(0), w.size(0)}, x.options());
    kernels::linear(y, x, w);
    return y.add_(matrix.bias(call));
  }
  // m * act(z).
  at::Tensor dropped(const at::Tensor& z, const Call& call) const {
    const at::Tensor a = bottleneck_activation(style_, z);
    apply_dropout(a, dropout_, call, io_.name);
    return a;
  }

  AdapterIo io_;
  AdapterBlockParts parts_;
  AdapterStyle style_;
  bool behind_;
  int64_t rank_;
  double scale_, dropout_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_adapter_block(const DecoderShape& shape, const AdapterShape& adapter, AdapterIo io, AdapterBlockParts parts) {
  return std::make_unique<AdapterBlock>(shape, adapter, std::move(io), std::move(parts));
}

}  // namespace cairn::model
