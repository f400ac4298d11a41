// A block under placements that its hand-written form does not have: its plain form (Block::plain), written for one process, runs on
// DTensors. Inputs and outputs of the block are redistributed from and to the stream that blocks share:
//
//   hidden [1, tokens, embed], split by tokens -> DTensor -> plain form: products by columns, by rows, by samples, as the weights lie
//                                              -> DTensor -> hidden', split by tokens; logits split by vocabulary
//
// Autograd runs inside the block. A parameter's gradient leaves in the parameter's placement; of a replicated one each rank contributes a
// term, and the sink sums them over its copies. In bf16, a block computes in fp32 between its bf16 inputs and outputs.
#include "parallel/dtensor_block.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "mesh/dtensor.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/layout/expert_split.h"
#include "parallel/layout/tensor_split.h"
#include "parallel/plan.h"

namespace cairn::parallel {
namespace {

// Parameters by id as DTensors; neighbours that a block reads as one matrix are stacked.
class DTensorWeights final : public model::Weights {
 public:
  void put(int32_t id, at::Tensor weight) { weights_[id] = std::move(weight); }
  at::Tensor get(mesh::ParamId id) const override {
    if (id.count == 1) return weights_.at(id.first);
    std::vector<at::Tensor> all;
    for (int32_t k = id.first; k < id.first + id.count; ++k) all.push_back(weights_.at(k));
    return at::cat(all);
  }

 private:
  std::map<int32_t, at::Tensor> weights_;
};

// A parameter as this block knows it.
struct PlacedParameter {
  int32_t id = 0;
  std::vector<int64_t> shape;
  mesh::Placement::How how;
};

// Where a rank's contribution to the gradient of a parameter lies: ranks with the same part of it each contribute a term.
mesh::Placement::How gradient_placement(const mesh::Placement::How& how) {
  if (std::holds_alternative<mesh::Replicate>(how)) return mesh::Partial{};
  if (const auto* ragged = std::get_if<mesh::Ragged>(&how)) {
    mesh::Ragged terms = *ragged;
    terms.partial = true;
    return terms;
  }
  return how;
}

class DTensorBlock final : public model::Block {
 public:
  DTensorBlock(const Block& own, std::vector<PlacedParameter> parameters, std::shared_ptr<mesh::DTensorAxis> axis)
      : own_(own), parameters_(std::move(parameters)), axis_(std::move(axis)), card_(own_.card()) {
    card_.fused_backward = true;
    card_.sliceable = false;
    for (const model::BlockOp& one : card_.operations) attends_ = attends_ || one.kind == model::BlockOp::Kind::attention;
  }

  const model::Card& card() const override { return card_; }

  void forward(model::Values& values, model::Saved* keep, const model::Call& call) const override {
    if (runs_own_form(call)) return own_.forward(values, keep, call);
    const at::AutoGradMode record(keep != nullptr);
    model::Values inside;
    for (const std::string& name : card_.reads) {
      const at::Tensor given = values.get(name);
      if (!given.is_floating_point()) {
        inside.put(name, given);
        continue;
      }
      const at::Tensor leaf = stream(kernels::widened(given), call).requires_grad_(keep != nullptr);
      if (keep) keep->put("in." + name, leaf);
      inside.put(name, attends_ ? leaf.view({call.slice.batch, call.slice.length, leaf.size(-1)}) : leaf);
    }
    for (const std::string& name : card_.optional_reads)
      if (values.has(name)) inside.put(name, values.get(name));
    DTensorWeights weights;
    for (const PlacedParameter& one : parameters_) {
      const at::Tensor leaf = mesh::dtensor_from_local(axis_, kernels::widened(call.weights.get({one.id, 1})), one.how, one.shape);
      weights.put(one.id, leaf.requires_grad_(keep != nullptr));
      if (keep) keep->put(fmt::format("weight.{}", one.id), leaf);
    }
    const mesh::Axes alone;
    own_.plain(inside, {.weights = weights, .buffers = call.buffers, .axes = alone, .random = call.random, .slice = call.slice});
    for (const std::string& name : card_.writes) {
      const at::Tensor made = inside.get(name), rows = made.reshape({1, call.slice.batch * call.slice.length, made.size(-1)});
      if (keep) keep->put("out." + name, rows);
      values.put(name, leaving(name, rows, call, keep != nullptr));
    }
  }

  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& call) const override {
    if (runs_own_form(call)) return own_.backward_input(gradients, saved, call);
    std::vector<at::Tensor> outputs, upstream, leaves;
    for (const std::string& name : card_.writes) {
      const at::Tensor out = saved.take("out." + name), gradient = kernels::widened(gradients.take(name));
      const mesh::Split split = leaving_split(name, out);
      outputs.push_back(out);
      upstream.push_back(mesh::dtensor_from_local(axis_, gradient.reshape({1, -1, gradient.size(-1)}), split, out.sizes().vec()));
    }
    std::vector<std::string> names;
    for (const std::string& name : card_.reads)
      if (saved.has("in." + name)) leaves.push_back(saved.take("in." + name)), names.push_back(name);
    for (const PlacedParameter& one : parameters_) leaves.push_back(saved.take(fmt::format("weight.{}", one.id)));
    const at::AutoGradMode record(true);
    const auto found = torch::autograd::grad(outputs, leaves, upstream, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < names.size(); ++i)
      gradients.add(names[i], local(found[i], mesh::even_split(1, leaves[i].size(1), axis_->size()), leaves[i]).to(dtype(call)));
    for (size_t i = 0; i < parameters_.size(); ++i)
      saved.put(fmt::format("dweight.{}", parameters_[i].id),
                local(found[names.size() + i], gradient_placement(parameters_[i].how), leaves[names.size() + i]));
  }

  void backward_weight(model::Saved&& saved, mesh::Gradients& into, const model::Call& call) const override {
    if (runs_own_form(call)) return own_.backward_weight(std::move(saved), into, call);
    for (size_t i = parameters_.size(); i-- > 0;)
      into.add({parameters_[i].id, 1}, saved.take(fmt::format("dweight.{}", parameters_[i].id)));
  }

  void plain(model::Values& values, const model::Call& call) const override { own_.plain(values, call); }

 private:
  static bool runs_own_form(const model::Call& call) { return !call.axes.find("tp"); }

  // This rank's tokens of the stream, [1, local tokens, embed].
  at::Tensor stream(const at::Tensor& here, const model::Call& call) const {
    const int64_t tokens = call.slice.batch * call.slice.length;
    return mesh::dtensor_from_local(axis_, here, mesh::Split{1, {}}, {1, tokens, here.size(-1)});
  }

  // Of the stream: that of the weights. Inside of the block half precision is widened, because plain forms round after every operation.
  at::ScalarType dtype(const model::Call& call) const { return call.weights.get({parameters_.front().id, 1}).scalar_type(); }

  bool is_logits(const std::string& name) const {
    return name == card_.writes.front() && !card_.operations.empty() && card_.operations.back().axes == std::vector<std::string>{"vocab"};
  }

  // Logits leave split by vocabulary, everything else by tokens.
  mesh::Split leaving_split(const std::string& name, const at::Tensor& rows) const {
    return is_logits(name) ? mesh::even_split(2, rows.size(2), axis_->size()) : mesh::even_split(1, rows.size(1), axis_->size());
  }

  model::Value leaving(const std::string& name, const at::Tensor& rows, const model::Call& call, bool keeps) const {
    const mesh::Split split = leaving_split(name, rows);
    at::Tensor here = mesh::to_local(axis_, rows, split, card_.name).contiguous().to(dtype(call));
    if (!is_logits(name)) return {.tensor = here};
    if (keeps) here = here.clone();  // the loss overwrites logits, and autograd may have kept these
    return {.tensor = here.view({call.slice.batch, call.slice.length, here.size(-1)}), .placement = {{{axis_->name(), split}}}};
  }

  // This rank's part of a gradient; zeros where nothing depends on the leaf.
  at::Tensor local(const at::Tensor& gradient, const mesh::Placement::How& how, const at::Tensor& leaf) const {
    return mesh::to_local(axis_, gradient.defined() ? gradient : at::zeros_like(leaf), how, card_.name).contiguous();
  }

  const Block& own_;  // of the model that this one is made from
  std::vector<PlacedParameter> parameters_;
  std::shared_ptr<mesh::DTensorAxis> axis_;
  model::Card card_;
  bool attends_ = false;
};

// A block of the model that this one is made from, unchanged.
class SameBlock final : public model::Block {
 public:
  explicit SameBlock(const Block& own) : own_(own) {}
  const model::Card& card() const override { return own_.card(); }
  void forward(model::Values& values, model::Saved* keep, const model::Call& call) const override { own_.forward(values, keep, call); }
  void backward_input(model::Values& gradients, model::Saved& saved, const model::Call& call) const override {
    own_.backward_input(gradients, saved, call);
  }
  void backward_weight(model::Saved&& saved, mesh::Gradients& into, const model::Call& call) const override {
    own_.backward_weight(std::move(saved), into, call);
  }
  void project(model::Values& values, const model::Call& call) const override { own_.project(values, call); }
  void plain(model::Values& values, const model::Call& call) const override { own_.plain(values, call); }

 private:
  const Block& own_;
};

class DTensorModel final : public model::Model {
 public:
  DTensorModel(std::unique_ptr<model::Model> own, const Plan& plan, comm::World& world) : own_(std::move(own)) {
    for (const model::Parameter& parameter : own_->parameters()) add(parameter);
    const auto axis = std::make_shared<mesh::DTensorAxis>(world, "tp", plan.mesh.peers(world.rank(), "tp"));
    const std::vector<bool> chosen = dtensor_blocks(*own_, plan);
    for (size_t b = 0; b < chosen.size(); ++b) {
      const model::Block& block = *own_->blocks()[b];
      if (chosen[b])
        add(std::make_unique<DTensorBlock>(block, parameters_of(block, plan), axis));
      else
        add(std::make_unique<SameBlock>(block));
    }
  }

  model::Buffers make_buffers(const at::TensorOptions& options) const override { return own_->make_buffers(options); }
  bool supports_batched_decoding() const override { return own_->supports_batched_decoding(); }
  std::string config_json() const override { return own_->config_json(); }
  int64_t positions() const override { return own_->positions(); }

 private:
  std::vector<PlacedParameter> parameters_of(const model::Block& block, const Plan& plan) const {
    std::vector<PlacedParameter> all;
    for (const mesh::ParamId& id : model::named_parameters(block.card()))
      for (int32_t k = id.first; k < id.first + id.count; ++k) {
        const model::Parameter& one = own_->parameters()[static_cast<size_t>(k)];
        all.push_back({k, one.shape, placement_of(plan, one.name).on("tp")});
      }
    return all;
  }

  std::unique_ptr<model::Model> own_;
};

}  // namespace

std::vector<bool> dtensor_blocks(const model::Model& model, const Plan& plan) {
  std::vector<bool> chosen;
  for (const auto& block : model.blocks()) {
    bool other = false;
    for (const mesh::ParamId& id : model::named_parameters(block->card()))
      for (int32_t k = id.first; k < id.first + id.count; ++k) {
        const model::Parameter& parameter = model.parameters()[static_cast<size_t>(k)];
        const bool expert = expert_dim(parameter) >= 0;  // along ep, as fit_to_model has seen to
        other = other || (!expert && !is_native_split(parameter, plan.mesh, placement_of(plan, parameter.name)));
      }
    chosen.push_back(other);
  }
  return chosen;
}

// A branch whose norm is a separate block reads the whole stream.
const model::Card* block_without_dtensors(const model::Model& model) {
  for (const auto& block : model.blocks()) {
    const std::vector<model::BlockOp>& operations = block->card().operations;
    using Kind = model::BlockOp::Kind;
    const bool begins = !operations.empty() && (operations.front().kind == Kind::lookup || operations.front().kind == Kind::norm);
    const bool only_norm = operations.size() == 1 && operations.front().kind == Kind::norm;
    if (!begins || only_norm) return &block->card();
  }
  return nullptr;
}

std::unique_ptr<model::Model> with_dtensor_blocks(std::unique_ptr<model::Model> model, const Plan& plan, comm::World& world) {
  const std::vector<bool> chosen = dtensor_blocks(*model, plan);
  if (std::none_of(chosen.begin(), chosen.end(), [](bool one) { return one; })) return model;
  return std::make_unique<DTensorModel>(std::move(model), plan, world);
}

}  // namespace cairn::parallel
