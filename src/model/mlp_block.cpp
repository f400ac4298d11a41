// x + down(silu(gate(norm(x))) * up(norm(x))), or x + down(gelu(up(norm(x)))).

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "kernels/aten.h"
#include "kernels/swiglu.h"
#include "model/decoder_blocks.h"
#include "model/plain_ops.h"
#include "model/rows.h"
#include "model/stream.h"

namespace cairn::model {
namespace {

class MlpBlock final : public Block {
 public:
  MlpBlock(const DecoderShape& shape, Border border, MlpParts parts)
      : shape_(shape), reads_(std::move(border.reads)), writes_(std::move(border.writes)), parts_(std::move(parts)) {
    const double embed = static_cast<double>(shape.embed), mlp = static_cast<double>(shape.mlp);
    const double widened = parts_.gated ? 2 * mlp : mlp;
    card_ = {
        .name = std::move(border.name),
        .reads = {reads_},
        .writes = {writes_},
        .operations = {
            {.name = "norm",
             .kind = Operation::Kind::norm,
             .parameters = parts_.norm.parameters(),
             .axes = {"embed"},
             .flops_per_token = 4 * embed,
             .saved_elements_per_token = 2 * embed},
            {.name = parts_.gated ? "gate_up" : "up",
             .kind = Operation::Kind::product,
             .parameters = parts_.up.parameters(),
             .axes = {"mlp"},
             .flops_per_token = 2 * embed * widened,
             .saved_elements_per_token = widened},
            {.name = parts_.gated ? "swiglu" : "gelu", .kind = Operation::Kind::elementwise, .axes = {"mlp"}, .flops_per_token = 5 * mlp},
            {.name = "down",
             .kind = Operation::Kind::product,
             .parameters = parts_.down.parameters(),
             .axes = {"embed"},
             .flops_per_token = 2 * embed * mlp}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // the stream
    const Norm::Result normed = parts_.norm.forward(x, call);
    const at::Tensor up = at::empty({extent(x, call).tokens(), parts_.up.out_width(call)}, x.options());
    const at::Tensor in =
        gather_tokens(rows(normed.y), extent(x, call), call, card_.name, [&](const at::Tensor& all, int64_t begin, int64_t count) {
          parts_.up.forward(up.narrow(0, begin, count), all.narrow(0, begin, count), call);
        });
    const at::Tensor active = parts_.gated ? at::empty({in.size(0), up.size(1) / 2}, x.options()) : at::gelu(up, "tanh");
    if (parts_.gated) kernels::swiglu(active, up);
    const at::Tensor terms = at::empty({in.size(0), shape_.embed}, x.options());
    const auto down = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
      parts_.down.product(sums.narrow(0, begin, count), active.narrow(0, begin, count), call);
    };
    const at::Tensor y = reduce_tokens(terms, call, card_.name, down).view(x.sizes());
    parts_.down.add_bias(rows(y), call);
    drop(rows(y), shape_.dropout, call, card_.name);
    y.add_(x);
    values.put(writes_, y);
    if (!keep) return;
    keep->put("x", x);
    keep->put("in", in);
    keep->put("statistics", normed.statistics);
    keep->put("up", up);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(writes_), up = saved.take("up"), dbranch = shape_.dropout > 0 ? dy.clone() : dy;
    drop(rows(dbranch), shape_.dropout, call, card_.name);
    // Each buffer serves twice: `active` first holds its own gradient, `up` becomes its gradient.
    at::Tensor active = at::empty({up.size(0), parts_.gated ? up.size(1) / 2 : up.size(1)}, dy.options()), dup = up;
    const at::Tensor dout =
        gather_tokens(rows(dbranch), extent(dy, call), call, card_.name, [&](const at::Tensor& all, int64_t begin, int64_t count) {
          parts_.down.input_gradient(active.narrow(0, begin, count), all.narrow(0, begin, count), call);
        });
    if (parts_.gated) {
      kernels::swiglu_backward(up, active, up, &active);
    } else {
      dup = at::gelu_backward(active, up, "tanh");
      active = at::gelu(up, "tanh");
    }
    const at::Tensor din = at::empty_like(dout), dx = at::empty_like(dy);
    const auto back = [&](const at::Tensor& sums, int64_t begin, int64_t count) {
      parts_.up.input_gradient(sums.narrow(0, begin, count), dup.narrow(0, begin, count), call);
    };
    const at::Tensor dnormed = reduce_tokens(din, call, card_.name, back).view(dy.sizes());
    parts_.norm.input_gradient(dx, dnormed, saved.get("x"), saved.get("statistics"), call, &dy);
    gradients.add(reads_, dx);
    saved.put("dy", dbranch);
    saved.put("dout", dout);
    saved.put("active", active);
    saved.put("dup", dup);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    parts_.down.product_gradient(into, saved.take("active"), saved.take("dout"), call);
    parts_.down.bias_gradient(into, rows(saved.take("dy")));
    parts_.up.weight_gradient(into, saved.take("in"), saved.take("dup"), call);
    parts_.norm.weight_gradient(into, saved.take("dnormed"), saved.take("x"), saved.take("statistics"), call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const at::Tensor up = parts_.up.plain(parts_.norm.plain(x, call), call);
    const at::Tensor active =
        parts_.gated ? at::silu(up.narrow(-1, 0, shape_.mlp)) * up.narrow(-1, shape_.mlp, shape_.mlp) : plain_gelu(up);
    values.put(writes_, x + parts_.down.plain(active, call));
  }

 private:
  DecoderShape shape_;
  std::string reads_, writes_;
  MlpParts parts_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_mlp_block(const DecoderShape& shape, Border border, MlpParts parts) {
  return std::make_unique<MlpBlock>(shape, std::move(border), std::move(parts));
}

}  // namespace cairn::model
