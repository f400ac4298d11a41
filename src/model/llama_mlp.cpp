// x + down(silu(gate(norm(x))) * up(norm(x))).

#include "kernels/gemm.h"
#include "kernels/aten.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "model/llama.h"
#include "model/llama_blocks.h"
#include "model/plain_ops.h"
#include "model/rows.h"

namespace cairn::model {
namespace {

class Mlp final : public Block {
 public:
  Mlp(const LlamaShape& shape, std::string name, std::string reads, std::string writes, MlpParameters parameters)
      : shape_(shape), reads_(std::move(reads)), writes_(std::move(writes)), parameters_(parameters) {
    const double embed = static_cast<double>(shape.embed), mlp = static_cast<double>(shape.mlp);
    card_ = {.name = std::move(name),
             .reads = {reads_},
             .writes = {writes_},
             .operations = {{.name = "norm",
                             .kind = Operation::Kind::norm,
                             .parameters = {parameters.norm},
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = 2 * embed},
                            {.name = "gate_up",
                             .kind = Operation::Kind::product,
                             .parameters = {parameters.gate_up},
                             .axes = {"mlp"},
                             .flops_per_token = 4 * embed * mlp,
                             .saved_elements_per_token = 2 * mlp},
                            {.name = "swiglu", .kind = Operation::Kind::elementwise, .axes = {"mlp"}, .flops_per_token = 5 * mlp},
                            {.name = "down",
                             .kind = Operation::Kind::product,
                             .parameters = {parameters.down},
                             .axes = {"embed"},
                             .flops_per_token = 2 * embed * mlp}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // [batch, length, embed]
    const int64_t tokens = x.numel() / shape_.embed;
    const at::Tensor normed = at::empty_like(x), rstd = at::empty({tokens}, x.options());
    kernels::rms_norm(normed, rstd, x, call.weights.get(parameters_.norm), shape_.norm_eps);
    const at::Tensor gate_up = at::empty({tokens, 2 * shape_.mlp}, x.options());
    kernels::linear(gate_up, rows(normed), call.weights.get(parameters_.gate_up));
    const at::Tensor gated = at::empty({tokens, shape_.mlp}, x.options());
    kernels::swiglu(gated, gate_up);
    const at::Tensor y = at::empty_like(x);
    kernels::linear(rows(y), gated, call.weights.get(parameters_.down));
    y.add_(x);
    values.put(writes_, y);
    if (!keep) return;
    keep->put("x", x);
    keep->put("normed", normed);
    keep->put("rstd", rstd);
    keep->put("gate_up", gate_up);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(writes_);
    const at::Tensor gate_up = saved.take("gate_up");
    // Each buffer serves twice: `gated` first holds its own gradient, `gate_up` becomes its gradient.
    const at::Tensor gated = at::empty({gate_up.size(0), shape_.mlp}, dy.options());
    kernels::linear_input(gated, rows(dy), call.weights.get(parameters_.down));
    kernels::swiglu_backward(gate_up, gated, gate_up, &gated);
    const at::Tensor dnormed = at::empty_like(dy), dx = at::empty_like(dy);
    kernels::linear_input(rows(dnormed), gate_up, call.weights.get(parameters_.gate_up));
    kernels::rms_norm_input(dx, dnormed, saved.get("x"), call.weights.get(parameters_.norm), saved.get("rstd"), &dy);
    gradients.add(reads_, dx);
    saved.put("dy", dy);
    saved.put("gated", gated);
    saved.put("dgate_up", gate_up);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor dy = rows(saved.take("dy"));
    into.outer(parameters_.down, saved.take("gated"), dy);
    into.outer(parameters_.gate_up, rows(saved.take("normed")), saved.take("dgate_up"));
    const at::Tensor dnorm = at::empty({shape_.embed}, dy.options());
    kernels::rms_norm_weight(dnorm, saved.take("dnormed"), saved.take("x"), saved.take("rstd"));
    into.add(parameters_.norm, dnorm);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const at::Tensor normed = plain_rms_norm(x, call.weights.get(parameters_.norm), shape_.norm_eps);
    const at::Tensor gate_up = at::matmul(normed, call.weights.get(parameters_.gate_up).t());
    const at::Tensor gated = at::silu(gate_up.narrow(-1, 0, shape_.mlp)) * gate_up.narrow(-1, shape_.mlp, shape_.mlp);
    values.put(writes_, x + at::matmul(gated, call.weights.get(parameters_.down).t()));
  }

 private:
  LlamaShape shape_;
  std::string reads_, writes_;
  MlpParameters parameters_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_llama_mlp(const LlamaShape& shape, std::string name, std::string reads, std::string writes,
                                      MlpParameters parameters) {
  return std::make_unique<Mlp>(shape, std::move(name), std::move(reads), std::move(writes), parameters);
}

}  // namespace cairn::model
