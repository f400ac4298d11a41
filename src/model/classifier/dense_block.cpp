// y = max(0, x w^T + b). With z = dy where y > 0, else 0:
//   dx = z w,   dw = z^T x,   db = the sum of z over samples
#include "model/classifier/dense_block.h"

#include <utility>

#include "kernels/aten.h"
#include "kernels/gemm.h"

namespace cairn::model {
namespace {

class DenseBlock final : public Block {
 public:
  explicit DenseBlock(DenseShape shape) : shape_(std::move(shape)) {
    card_ = {.name = shape_.name,
             .reads = {shape_.reads},
             .writes = {shape_.writes},
             .operations = {{.name = "linear",
                             .kind = BlockOp::Kind::product,
                             .parameters = {shape_.weight, shape_.bias},
                             .axes = {"mlp"},
                             .flops_per_token = 2.0 * static_cast<double>(shape_.in * shape_.out),
                             .saved_elements_per_token = static_cast<double>(shape_.in + shape_.out)}}};
    if (shape_.activate) card_.operations.push_back({.name = "relu", .kind = BlockOp::Kind::elementwise, .axes = {"mlp"}});
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(shape_.reads), y = at::empty({x.size(0), shape_.out}, x.options());
    kernels::linear(y, x, call.weights.get(shape_.weight));
    y.add_(call.weights.get(shape_.bias));
    if (shape_.activate) y.clamp_min_(0);
    values.put(shape_.writes, y);
    if (!keep) return;
    keep->put("in", x);
    if (shape_.activate) keep->put("out", y);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    at::Tensor dy = gradients.take(shape_.writes);
    if (shape_.activate) dy = dy * saved.take("out").gt(0);
    if (call.needs.input) {
      const at::Tensor w = call.weights.get(shape_.weight), dx = at::empty({dy.size(0), shape_.in}, dy.options());
      kernels::linear_backward_input(dx, dy, w);
      gradients.add(shape_.reads, dx);
    }
    saved.put("dy", dy);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor dy = saved.take("dy");
    into.add_sum(shape_.bias, dy);
    into.outer(shape_.weight, saved.take("in"), dy);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor y = at::linear(values.get(shape_.reads), call.weights.get(shape_.weight), call.weights.get(shape_.bias));
    values.put(shape_.writes, shape_.activate ? y.clamp_min(0) : y);
  }

 private:
  DenseShape shape_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_dense_block(DenseShape shape) { return std::make_unique<DenseBlock>(std::move(shape)); }

}  // namespace cairn::model
