// One layer, of all nodes at once:
//
//   z = W act(x) + b                   act: none in the first layer, max(0, .) after it
//   h = (sigmoid(z_0) exp(c) + 1.1, z_s sqrt((time^2 - 1) / |z_s|^2))
//   y_i = sum_j a_ij h_j / sqrt(|<., .>|)     a: 1 / (number of neighbours + 1), the node itself among them
//
// The product is the linear layer's own, so W may have another form (model.spectral); the rest goes through autograd inside the block.
#include "model/hyperbolic/lorentz_graph.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "base/files.h"
#include "kernels/aten.h"
#include "model/autograd_block.h"
#include "model/decoder/linear.h"
#include "model/decoder/weight_form.h"
#include "model/hyperbolic/lorentz.h"

namespace cairn::model {
namespace {

constexpr const char* kGraphBuffer = "graph.weights";
constexpr int64_t kEdgeBytesMax = 1 << 30;

class LorentzLayerBlock final : public Block {
 public:
  struct Parts {
    std::string name, reads, writes;
    std::optional<mesh::ParamId> nodes = {};  // in the first layer, which reads these points
    Linear linear;
    mesh::ParamId scale;
  };
  explicit LorentzLayerBlock(Parts parts) : parts_(std::move(parts)) {
    card_ = {.name = parts_.name, .writes = {parts_.writes}, .buffers = {kGraphBuffer}};
    if (!parts_.nodes) card_.reads = {parts_.reads};
    BlockOp operation{.name = "linear", .axes = {"hidden"}};
    parts_.linear.describe(operation);
    card_.operations.push_back(std::move(operation));
    BlockOp rest{.name = "centroid", .kind = BlockOp::Kind::other, .parameters = {parts_.scale}, .axes = {"hidden"}};
    if (parts_.nodes) rest.parameters.push_back(*parts_.nodes);
    card_.operations.push_back(std::move(rest));
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = input(values, call), z = at::empty({x.size(0), parts_.linear.out_width(call)}, x.options());
    parts_.linear.forward(z, x, call);
    values.put(parts_.writes, rest(z, call.weights.get(parts_.scale), call));
    if (!keep) return;
    keep->put("in", x);
    keep->put("z", z);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(parts_.writes);
    std::vector<at::Tensor> found;
    {
      const at::AutoGradMode record(true);
      const at::Tensor z = saved.take("z").detach().requires_grad_(), scale = call.weights.get(parts_.scale).detach().requires_grad_();
      found = torch::autograd::grad({rest(z, scale, call)}, {z, scale}, {dy});
    }
    const at::Tensor& x = saved.get("in");
    const at::Tensor dx = at::empty_like(x);
    parts_.linear.input_gradient(dx, found[0], call);
    if (!parts_.nodes) dx.mul_(x.gt(0));
    if (parts_.nodes)
      saved.put("nodes", dx);
    else
      gradients.add(parts_.reads, dx);
    saved.put("dz", found[0]);
    saved.put("scale", found[1]);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    into.add(parts_.scale, saved.take("scale"));
    parts_.linear.weight_gradient(into, {.values = saved.take("in")}, {.values = saved.take("dz")}, call);
    if (parts_.nodes) into.add(*parts_.nodes, saved.take("nodes"));
  }

  void plain(Values& values, const Call& call) const override {
    values.put(parts_.writes, rest(parts_.linear.plain(input(values, call), call), call.weights.get(parts_.scale), call));
  }

 private:
  at::Tensor input(Values& values, const Call& call) const {
    if (!parts_.nodes) return values.get(parts_.reads).clamp_min(0);
    const at::Tensor points = call.weights.get(*parts_.nodes);
    if (points.is_cpu()) lorentz::check_on_manifold(points.detach(), "nodes.weight");
    return points;
  }
  static at::Tensor rest(const at::Tensor& z, const at::Tensor& scale, const Call& call) {
    return lorentz::centroid(call.buffers.at(kGraphBuffer), lorentz::project_linear(z, scale));
  }

  Parts parts_;
  Card card_;
};

class LorentzGraph final : public Model {
 public:
  LorentzGraph(const LorentzGraphShape& shape, const std::shared_ptr<const WeightFormRule>& forms) : shape_(shape) {
    const mesh::ParamId nodes = Model::add({.name = "nodes.weight",
                                            .shape = {shape.nodes, shape.width},
                                            .axes = {"nodes", "hidden"},
                                            .role = Parameter::Role::embedding,
                                            .deviation = 0.1,
                                            .decay = false,
                                            .on_hyperboloid = true});
    std::string reads;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string name = fmt::format("layers.{}", layer), writes = fmt::format("nodes.{}", layer + 1);
      Linear linear = add_linear(name, forms);
      const mesh::ParamId scale = Model::add({.name = name + ".scale",
                                              .shape = {1},
                                              .axes = {"scale"},
                                              .role = Parameter::Role::norm,
                                              .init = Parameter::Init::constant,
                                              .deviation = std::log(10.0)});
      Model::add(std::make_unique<LorentzLayerBlock>(LorentzLayerBlock::Parts{.name = name,
                                                                              .reads = reads,
                                                                              .writes = writes,
                                                                              .nodes = layer == 0 ? std::optional(nodes) : std::nullopt,
                                                                              .linear = std::move(linear),
                                                                              .scale = scale}));
      reads = writes;
    }
    add_head(reads);
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    const at::Tensor weights = at::zeros({shape_.nodes, shape_.nodes}, at::kFloat);
    weights.diagonal().fill_(1);
    float* const at = weights.mutable_data_ptr<float>();
    for (const auto& [a, b] : shape_.edges) at[a * shape_.nodes + b] = at[b * shape_.nodes + a] = 1;
    return {{kGraphBuffer, (weights / weights.sum(1, /*keepdim=*/true)).to(options)}};
  }

 private:
  Linear add_linear(const std::string& name, const std::shared_ptr<const WeightFormRule>& forms) {
    const Parameter dense{.name = name + ".weight",
                          .shape = {shape_.width, shape_.width},
                          .axes = {"hidden", "hidden"},
                          .deviation = 1 / std::sqrt(static_cast<double>(shape_.width))};
    Linear linear;
    const WeightFormRule::Kind kind = forms ? forms->kind_of(dense) : WeightFormRule::Kind::plain;
    std::optional<mesh::ParamId> stored;
    if (kind != WeightFormRule::Kind::replaced) stored = linear.weight = Model::add(dense);
    if (!stored) linear.weight.count = 0;
    linear.bias = Model::add({.name = name + ".bias",
                              .shape = {shape_.width},
                              .axes = {"hidden"},
                              .role = Parameter::Role::bias,
                              .init = Parameter::Init::zeros});
    if (kind != WeightFormRule::Kind::plain) linear.forms = {forms->make(*this, dense, stored)};
    return linear;
  }

  // softplus(-0.43) = 0.5 and softplus(0.54) = 1.
  void add_head(const std::string& reads) {
    const auto number = [&](const char* name, double value) {
      return Model::add({.name = std::string("distance.") + name,
                         .shape = {1},
                         .axes = {"scale"},
                         .role = Parameter::Role::norm,
                         .init = Parameter::Init::constant,
                         .deviation = value});
    };
    const std::vector<mesh::ParamId> numbers{number("step", -0.43), number("offset", 0), number("sharpness", 0.54)};
    Card card{.name = "distance",
              .reads = {reads, "features"},
              .writes = {"logits"},
              .operations = {{.name = "distance", .parameters = numbers, .axes = {"classes"}, .width = shape_.classes}}};
    Model::add(make_autograd_block(
        std::move(card), [classes = shape_.classes, nodes = shape_.nodes](const std::vector<at::Tensor>& inputs,
                                                                          const std::vector<at::Tensor>& parameters, const Call&) {
          const at::Tensor pairs = inputs[1].detach().to(at::kLong);
          if (pairs.numel() > 0 && pairs.is_cpu() && (pairs.min().item<int64_t>() < 0 || pairs.max().item<int64_t>() >= nodes))
            base::fail_input(
                "model.hyperbolic.nodes = {}: the data name node {}. Use the number of nodes of the graph, and data.standardize = "
                "false.",
                nodes, pairs.max().item<int64_t>());
          const auto softplus = [](const at::Tensor& x) { return at::exp(x).log1p(); };
          const at::Tensor between =
              lorentz::distance(inputs[0].index_select(0, pairs.select(1, 0)), inputs[0].index_select(0, pairs.select(1, 1)));
          const at::Tensor expected = softplus(parameters[0]) * at::arange(classes, inputs[0].options()) + parameters[1];
          return std::vector<at::Tensor>{(between.unsqueeze(1) - expected).square() * -softplus(parameters[2])};
        }));
  }

  LorentzGraphShape shape_;
};

}  // namespace

GraphEdges read_edges(const std::string& file, int64_t nodes) {
  const std::string text = base::read_file(file, kEdgeBytesMax);
  GraphEdges edges;
  int64_t line = 0;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string one = text.substr(at, end - at);
    at = end + 1;
    if (one.find_first_not_of(" \t\r") == std::string::npos) continue;
    char* rest = nullptr;
    const int64_t a = std::strtoll(one.c_str(), &rest, 10);
    const char* const second = rest;
    const int64_t b = std::strtoll(second, &rest, 10);
    if (rest == second || std::string(rest).find_first_not_of(" \t\r") != std::string::npos)
      base::fail_corrupt(file, fmt::format("line {}: not two nodes", line + 1));
    if (a < 0 || b < 0 || a >= nodes || b >= nodes)
      base::fail_corrupt(file, fmt::format("line {}: nodes {} and {} of a graph of {} (model.hyperbolic.nodes)", line + 1, a, b, nodes));
    edges.emplace_back(a, b);
  }
  return edges;
}

std::unique_ptr<Model> make_lorentz_graph(const LorentzGraphShape& shape, const std::shared_ptr<const WeightFormRule>& forms) {
  return std::make_unique<LorentzGraph>(shape, forms);
}

}  // namespace cairn::model
