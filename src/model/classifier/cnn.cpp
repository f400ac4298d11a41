#include "model/classifier/cnn.h"

#include <cmath>

#include <ATen/ops/conv2d.h>
#include <fmt/format.h>

#include "kernels/aten.h"
#include "model/autograd_block.h"
#include "model/classifier/batch_norm.h"

namespace cairn::model {
namespace {

class Cnn final : public Model {
 public:
  explicit Cnn(const CnnShape& shape) : shape_(shape) {
    std::string reads = "pixels";
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string writes = fmt::format("hidden.{}", layer);
      const bool joins = shape.skip && layer > 1 && layer + 1 == shape.layers;
      add_convolution(fmt::format("layers.{}", layer), reads, writes, layer == 0 ? shape.channels : shape.width, joins);
      reads = writes;
    }
    add_head(reads);
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    Buffers buffers;
    for (int64_t layer = 0; layer < shape_.layers; ++layer)
      add_batch_norm_buffers(buffers, fmt::format("layers.{}.norm", layer), shape_.width, options);
    return buffers;
  }

 private:
  void add_convolution(const std::string& name, const std::string& reads, const std::string& writes, int64_t in, bool joins) {
    const mesh::ParamId weight = Model::add({.name = name + ".weight",
                                             .shape = {shape_.width, in, 3, 3},
                                             .axes = {"channels", "embed", "height", "width"},
                                             .deviation = std::sqrt(2.0 / (9.0 * static_cast<double>(in)))});
    const mesh::ParamId gain = Model::add({.name = name + ".norm.weight",
                                           .shape = {shape_.width},
                                           .axes = {"channels"},
                                           .role = Parameter::Role::norm,
                                           .init = Parameter::Init::ones});
    const mesh::ParamId shift = Model::add({.name = name + ".norm.bias",
                                            .shape = {shape_.width},
                                            .axes = {"channels"},
                                            .role = Parameter::Role::bias,
                                            .init = Parameter::Init::zeros});
    Card card{.name = name,
              .reads = {reads},
              .writes = {writes},
              .operations = {{.name = "convolution",
                              .parameters = {weight, gain, shift},
                              .axes = {"channels"},
                              .flops_per_token = 18.0 * static_cast<double>(in * shape_.width),
                              .saved_elements_per_token = 3.0 * static_cast<double>(shape_.width),
                              .width = shape_.width}},
              .buffers = {name + ".norm.running_mean", name + ".norm.running_var", name + ".norm.pending"}};
    if (joins) {
      card.reads.push_back("hidden.0");
      card.operations.front().reads = card.reads;
    }
    Model::add(make_autograd_block(std::move(card), [norm = name + ".norm"](const std::vector<at::Tensor>& inputs,
                                                                            const std::vector<at::Tensor>& parameters, const Call& call) {
      const at::Tensor x = inputs.size() > 1 ? inputs[0] + inputs[1] : inputs[0];
      const at::Tensor y = at::conv2d(x, parameters[0], /*bias=*/{}, /*stride=*/1, /*padding=*/1);
      return std::vector<at::Tensor>{batch_norm(y, parameters[1], parameters[2], norm, call).clamp_min(0)};
    }));
  }

  void add_head(const std::string& reads) {
    const mesh::ParamId weight = Model::add({.name = "head.weight",
                                             .shape = {shape_.classes, shape_.width},
                                             .axes = {"classes", "channels"},
                                             .role = Parameter::Role::head,
                                             .deviation = 1 / std::sqrt(static_cast<double>(shape_.width))});
    Card card{.name = "head",
              .reads = {reads},
              .writes = {"logits"},
              .operations = {{.name = "pool", .axes = {"channels"}, .width = shape_.width},
                             {.name = "linear",
                              .kind = BlockOp::Kind::product,
                              .parameters = {weight},
                              .axes = {"classes"},
                              .flops_per_token = 2.0 * static_cast<double>(shape_.classes * shape_.width)}}};
    Model::add(make_autograd_block(std::move(card),
                                   [](const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters, const Call&) {
                                     return std::vector<at::Tensor>{at::matmul(inputs[0].mean({2, 3}), parameters[0].t())};
                                   }));
  }

  CnnShape shape_;
};

}  // namespace

std::unique_ptr<Model> make_cnn(const CnnShape& shape) { return std::make_unique<Cnn>(shape); }

}  // namespace cairn::model
