#include "model/vision/conv_net.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/vision/conv_layer.h"

namespace cairn::model {
namespace {

constexpr int64_t kLargeSize = 48;

// Strides and widths of the layers, in running order.
struct PlacedLayer {
  int64_t stage, place, in, middle, out, stride, size;  // size: height and width of what it reads
};

int64_t stem_stride(const ConvNetShape& shape) { return shape.kernel > 1 && shape.size >= kLargeSize ? 2 : 1; }

std::vector<PlacedLayer> placed_layers(const ConvNetShape& shape) {
  std::vector<PlacedLayer> layers;
  const int64_t stride_of_stem = stem_stride(shape);
  int64_t size = (shape.size + stride_of_stem - 1) / stride_of_stem, in = shape.widths.front();
  for (size_t stage = 0; stage < shape.widths.size(); ++stage)
    for (int64_t place = 0; place < shape.depths[stage]; ++place) {
      const int64_t stride = stage > 0 && place == 0 && shape.kernel > 1 && size > 1 ? 2 : 1, out = shape.widths[stage];
      const int64_t middle = shape.middles.empty() ? middle_channels(in, shape.expand) : shape.middles[layers.size()];
      layers.push_back({static_cast<int64_t>(stage), place, in, middle, out, stride, size});
      size = (size + stride - 1) / stride, in = out;
    }
  return layers;
}

class ConvNet final : public Model {
 public:
  explicit ConvNet(const ConvNetShape& shape) : shape_(shape) {
    const int64_t first = shape.widths.front(), taps = shape.kernel * shape.kernel;
    ConvStem stem{.writes = "hidden.0",
                  .channels = shape.channels,
                  .out = first,
                  .kernel = shape.kernel,
                  .stride = stem_stride(shape),
                  .positions = shape.size * shape.size};
    stem.weight = Model::add({.name = "stem.weight",
                              .shape = {first, shape.channels, shape.kernel, shape.kernel},
                              .axes = {"channels", "embed", "height", "width"},
                              .deviation = std::sqrt(2.0 / static_cast<double>(taps * shape.channels))});
    Model::add(make_conv_stem(std::move(stem)));
    size_t number = 0;
    for (const PlacedLayer& layer : placed_layers(shape)) add_layer(layer, number++);
    add_head(fmt::format("hidden.{}", number));
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    Buffers buffers;
    for (const auto& [name, channels] : norms_) add_batch_norm_buffers(buffers, name, channels, options);
    return buffers;
  }

  const ConvNetShape& shape() const { return shape_; }

  ElasticShape elastic() const override {
    ElasticShape elastic;
    const auto product = [](std::initializer_list<int64_t> factors) {
      double all = 2;
      for (const int64_t one : factors) all *= static_cast<double>(one);
      return all;
    };
    const std::vector<PlacedLayer> layers = placed_layers(shape_);
    for (const PlacedLayer& layer : layers) {
      const int64_t before = layer.size * layer.size, side = (layer.size + layer.stride - 1) / layer.stride, after = side * side;
      const std::string name = fmt::format("stages.{}.{}", layer.stage, layer.place);
      ElasticLayer one{.stage = layer.stage, .place = layer.place, .name = name, .tensors = name + ".", .in = layer.in};
      one.middle = layer.middle;
      one.flops = product({before, layer.in, layer.middle}) + product({after, layer.middle, layer.out});
      one.of_middle = {{name + ".expand.weight", 0}, {name + ".project.weight", 1}};
      one.projection = {name + ".project.weight", 1};
      std::vector<std::string> norms{name + ".expand_norm"};
      if (shape_.kernel > 1) {
        one.flops += product({after, layer.middle, shape_.kernel, shape_.kernel});
        one.of_middle.push_back({name + ".depthwise.weight", 0});
        norms.push_back(name + ".depthwise_norm");
      }
      for (const std::string& norm : norms)
        for (const char* ending : {".weight", ".bias", ".running_mean", ".running_var"}) one.of_middle.push_back({norm + ending, 0});
      elastic.layers.push_back(std::move(one));
    }
    const int64_t side = (shape_.size + stem_stride(shape_) - 1) / stem_stride(shape_);
    elastic.other_flops = product({side, side, shape_.kernel, shape_.kernel, shape_.channels, shape_.widths.front()}) +
                          product({shape_.widths.back(), shape_.classes});
    return elastic;
  }

 private:
  ChannelNorm add_norm(const std::string& name, int64_t channels, const std::string& axis, bool relu) {
    ChannelNorm norm{.name = name, .channels = channels, .relu = relu};
    norm.gain = Model::add(
        {.name = name + ".weight", .shape = {channels}, .axes = {axis}, .role = Parameter::Role::norm, .init = Parameter::Init::ones});
    norm.shift = Model::add(
        {.name = name + ".bias", .shape = {channels}, .axes = {axis}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros});
    norms_.emplace_back(name, channels);
    return norm;
  }

  void add_layer(const PlacedLayer& placed, size_t number) {
    const std::string name = fmt::format("stages.{}.{}", placed.stage, placed.place);
    ConvLayer layer{.name = name,
                    .reads = fmt::format("hidden.{}", number),
                    .writes = fmt::format("hidden.{}", number + 1),
                    .stage = placed.stage,
                    .place = placed.place,
                    .layer = number,
                    .in = placed.in,
                    .middle = placed.middle,
                    .out = placed.out,
                    .kernel = shape_.kernel,
                    .stride = placed.stride,
                    .positions = placed.size * placed.size};
    const auto spread = [](int64_t inputs) { return std::sqrt(2.0 / static_cast<double>(inputs)); };
    layer.expand = Model::add({.name = name + ".expand.weight",
                               .shape = {placed.middle, placed.in},
                               .axes = {"middle", "channels"},
                               .deviation = spread(placed.in)});
    layer.expand_norm = add_norm(name + ".expand_norm", placed.middle, "middle", /*relu=*/true);
    if (layer.looks_at_neighbours()) {
      layer.depthwise = Model::add({.name = name + ".depthwise.weight",
                                    .shape = {placed.middle, shape_.kernel, shape_.kernel},
                                    .axes = {"middle", "height", "width"},
                                    .deviation = spread(shape_.kernel * shape_.kernel)});
      layer.depthwise_norm = add_norm(name + ".depthwise_norm", placed.middle, "middle", /*relu=*/true);
    }
    layer.project = Model::add({.name = name + ".project.weight",
                                .shape = {placed.out, placed.middle},
                                .axes = {"channels", "middle"},
                                .deviation = spread(placed.middle)});
    Model::add(make_conv_layer(std::move(layer)));
  }

  void add_head(const std::string& reads) {
    ConvHead head{.reads = reads, .width = shape_.widths.back(), .classes = shape_.classes};
    head.norm = add_norm("head_norm", head.width, "channels", /*relu=*/false);
    head.weight = Model::add({.name = "head.weight",
                              .shape = {head.classes, head.width},
                              .axes = {"classes", "channels"},
                              .role = Parameter::Role::head,
                              .deviation = 1 / std::sqrt(static_cast<double>(head.width))});
    head.bias = Model::add(
        {.name = "head.bias", .shape = {head.classes}, .axes = {"classes"}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros});
    Model::add(make_conv_head(std::move(head)));
  }

  ConvNetShape shape_;
  std::vector<std::pair<std::string, int64_t>> norms_;
};

}  // namespace

const ConvNetShape* conv_net_shape(const Model& model) {
  const auto* net = dynamic_cast<const ConvNet*>(&model);
  return net ? &net->shape() : nullptr;
}

std::vector<int64_t> middles_of(const ConvNetShape& shape) {
  std::vector<int64_t> middles;
  for (const PlacedLayer& layer : placed_layers(shape)) middles.push_back(layer.middle);
  return middles;
}

std::unique_ptr<Model> make_conv_net(const ConvNetShape& shape) { return std::make_unique<ConvNet>(shape); }

}  // namespace cairn::model
