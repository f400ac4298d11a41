#include "model/autograd_block.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/named_parameters.h"

namespace cairn::model {
namespace {

class AutogradBlock final : public Block {
 public:
  AutogradBlock(Card card, Differentiable function) : card_(std::move(card)), function_(std::move(function)) {
    card_.fused_backward = true;
    parameters_ = named_parameters(card_);
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    if (!keep) {
      at::NoGradGuard no_grad;
      plain(values, call);
      return;
    }
    at::AutoGradMode record(true);
    std::vector<at::Tensor> inputs, weights;
    for (const std::string& name : card_.reads) {
      at::Tensor leaf = values.get(name).detach();
      if (leaf.is_floating_point()) leaf.requires_grad_();
      inputs.push_back(leaf);
    }
    for (mesh::ParamId id : parameters_) weights.push_back(call.weights.get(id).detach().requires_grad_());
    const std::vector<at::Tensor> outputs = function_(inputs, weights, call);
    CAIRN_CHECK(outputs.size() == card_.writes.size(), "{} wrote {} values, its card lists {}", card_.name, outputs.size(),
                card_.writes.size());
    for (size_t i = 0; i < inputs.size(); ++i) keep->put(fmt::format("in{}", i), inputs[i]);
    for (size_t i = 0; i < weights.size(); ++i) keep->put(fmt::format("weight{}", i), weights[i]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      keep->put(fmt::format("out{}", i), outputs[i]);
      values.put(card_.writes[i], outputs[i].detach());
    }
  }

  void backward_input(Values& gradients, Saved& saved, const Call&) const override {
    std::vector<at::Tensor> outputs, upstream, leaves;
    for (size_t i = 0; i < card_.writes.size(); ++i) {
      if (!gradients.has(card_.writes[i])) continue;  // an output that nothing read
      outputs.push_back(saved.take(fmt::format("out{}", i)));
      upstream.push_back(gradients.take(card_.writes[i]));
    }
    std::vector<std::string> names;  // where each leaf's gradient goes; empty: a parameter
    for (size_t i = 0; i < card_.reads.size(); ++i) {
      const at::Tensor leaf = saved.take(fmt::format("in{}", i));
      if (!leaf.requires_grad()) continue;
      leaves.push_back(leaf);
      names.push_back(card_.reads[i]);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) leaves.push_back(saved.take(fmt::format("weight{}", i)));
    at::AutoGradMode record(true);
    const auto found =
        torch::autograd::grad(outputs, leaves, upstream, /*retain_graph=*/std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < names.size(); ++i)
      if (found[i].defined()) gradients.add(names[i], found[i]);
    for (size_t i = names.size(); i < leaves.size(); ++i)
      saved.put(fmt::format("dweight{}", i - names.size()), found[i].defined() ? found[i] : at::zeros_like(leaves[i]));
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    for (size_t i = parameters_.size(); i-- > 0;) into.add(parameters_[i], saved.take(fmt::format("dweight{}", i)));
  }

  void plain(Values& values, const Call& call) const override {
    std::vector<at::Tensor> inputs, weights;
    for (const std::string& name : card_.reads) inputs.push_back(values.get(name));
    for (mesh::ParamId id : parameters_) weights.push_back(call.weights.get(id));
    const std::vector<at::Tensor> outputs = function_(inputs, weights, call);
    for (size_t i = 0; i < outputs.size(); ++i) values.put(card_.writes[i], outputs[i]);
  }

 private:
  Card card_;
  Differentiable function_;
  std::vector<mesh::ParamId> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_autograd_block(Card card, Differentiable function) {
  return std::make_unique<AutogradBlock>(std::move(card), std::move(function));
}

}  // namespace cairn::model
