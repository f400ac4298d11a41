#include "model/classifier/classifier.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/aten.h"
#include "model/autograd_block.h"
#include "model/classifier/batch_norm.h"
#include "model/classifier/dense_block.h"

namespace cairn::model {
namespace {

class Classifier final : public Model {
 public:
  explicit Classifier(const ClassifierShape& shape) : shape_(shape) {
    std::string reads = "features";
    int64_t in = shape.features;
    if (!shape.widths.empty()) {
      add_dense_layers();
      return;
    }
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string writes = fmt::format("hidden.{}", layer);
      add_layer(fmt::format("layers.{}", layer), reads, writes, in, shape.hidden, /*activate=*/true);
      reads = writes;
      in = shape.hidden;
    }
    add_layer("head", reads, "logits", in, shape.classes, /*activate=*/false);
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    Buffers buffers;
    for (int64_t layer = 0; shape_.widths.empty() && shape_.batch_norm && layer < shape_.layers; ++layer)
      add_batch_norm_buffers(buffers, fmt::format("layers.{}.norm", layer), shape_.hidden, options);
    return buffers;
  }

 private:
  // Weights begin with a variance of 2 / inputs (He), those of the head with 1 / inputs; biases with 0.
  void add_dense_layers() {
    std::string reads = "features";
    int64_t in = shape_.features;
    for (size_t layer = 0; layer <= shape_.widths.size(); ++layer) {
      const bool head = layer == shape_.widths.size();
      const std::string name = head ? "head" : fmt::format("layers.{}", layer), writes = head ? "logits" : fmt::format("hidden.{}", layer);
      const int64_t out = head ? shape_.classes : shape_.widths[layer];
      const mesh::ParamId weight = Model::add({.name = name + ".weight",
                                               .shape = {out, in},
                                               .axes = {"mlp", "embed"},
                                               .deviation = std::sqrt((head ? 1.0 : 2.0) / static_cast<double>(in))});
      const mesh::ParamId bias = Model::add(
          {.name = name + ".bias", .shape = {out}, .axes = {"mlp"}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros});
      Model::add(make_dense_block(
          {.name = name, .reads = reads, .writes = writes, .in = in, .out = out, .weight = weight, .bias = bias, .activate = !head}));
      reads = writes;
      in = out;
    }
  }

  void add_layer(const std::string& name, const std::string& reads, const std::string& writes, int64_t in, int64_t out, bool activate) {
    const mesh::ParamId weight = Model::add(
        {.name = name + ".weight", .shape = {out, in}, .axes = {"mlp", "embed"}, .deviation = 1 / std::sqrt(static_cast<double>(in))});
    const mesh::ParamId bias = Model::add(
        {.name = name + ".bias", .shape = {out}, .axes = {"mlp"}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros});
    std::vector<mesh::ParamId> of_norm;
    const bool normed = shape_.batch_norm && activate;
    if (normed) {
      of_norm.push_back(Model::add(
          {.name = name + ".norm.weight", .shape = {out}, .axes = {"mlp"}, .role = Parameter::Role::norm, .init = Parameter::Init::ones}));
      of_norm.push_back(Model::add(
          {.name = name + ".norm.bias", .shape = {out}, .axes = {"mlp"}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros}));
    }
    Card card{.name = name,
              .reads = {reads},
              .writes = {writes},
              .operations = {{.name = "linear",
                              .kind = BlockOp::Kind::product,
                              .parameters = {weight, bias},
                              .axes = {"mlp"},
                              .flops_per_token = 2.0 * static_cast<double>(in * out),
                              .saved_elements_per_token = static_cast<double>(in + out)}}};
    // Its sums run over the batch, so it is not sharded.
    if (normed) card.operations.push_back({.name = "batch_norm", .parameters = of_norm, .axes = {"mlp"}, .width = out});
    if (activate) card.operations.push_back({.name = "tanh", .kind = BlockOp::Kind::elementwise, .axes = {"mlp"}});
    Model::add(make_autograd_block(std::move(card), [activate, normed, name](const std::vector<at::Tensor>& inputs,
                                                                             const std::vector<at::Tensor>& parameters, const Call& call) {
      at::Tensor y = at::linear(inputs[0], parameters[0], parameters[1]);
      if (normed) y = batch_norm(y, parameters[2], parameters[3], name + ".norm", call);
      return std::vector<at::Tensor>{activate ? at::tanh(y) : y};
    }));
  }

  ClassifierShape shape_;
};

}  // namespace

std::unique_ptr<Model> make_classifier(const ClassifierShape& shape) { return std::make_unique<Classifier>(shape); }

}  // namespace cairn::model
