#include "model/classifier/cnn3d.h"

#include <array>
#include <cmath>

#include <ATen/ops/conv3d.h>
#include <ATen/ops/convolution_backward.h>
#include <fmt/format.h>

#include "kernels/aten.h"
#include "model/autograd_block.h"
#include "model/classifier/batch_norm.h"
#include "model/classifier/batch_norm_block.h"

namespace cairn::model {
namespace {

constexpr int64_t kKernel = 3;
constexpr int64_t kTaps = kKernel * kKernel * kKernel;

int64_t channels_of(const Cnn3dShape& shape, int64_t layer) { return shape.width * (layer == 0 ? 1 : layer < 3 ? 2 : 4); }
int64_t time_stride_of(int64_t layer) { return layer == 1 || layer == 2 ? 2 : 1; }

struct Convolution {
  std::string name, reads, writes;
  mesh::ParamId weight;
  int64_t in = 1, out = 1, time_stride = 1;
  int64_t positions = 1;  // of its output
  bool first = false;     // reads the batch, which needs no gradient
};

class Conv3d final : public Block {
 public:
  explicit Conv3d(const Convolution& of) : of_(of) {
    card_ = {.name = of.name,
             .reads = {of.reads},
             .writes = {of.writes},
             .operations = {{.name = "convolution",
                             .parameters = {of.weight},
                             .axes = {"channels"},
                             .flops_per_token = 2.0 * static_cast<double>(kTaps * of.in * of.out * of.positions),
                             .saved_elements_per_token = static_cast<double>(of.in * of.positions * 4 * of.time_stride),
                             .width = of.out}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(of_.reads), weight = call.weights.get(of_.weight);
    if (keep) keep->put("x", x);
    values.put(of_.writes, convolve(x, weight));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(of_.writes);
    if (call.needs.input && !of_.first)
      gradients.add(of_.reads, backward(dy, saved.get("x"), call.weights.get(of_.weight), {true, false, false})[0]);
    saved.put("dy", dy);
    saved.put("weight", call.weights.get(of_.weight));
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    into.add(of_.weight, backward(saved.take("dy"), saved.take("x"), saved.take("weight"), {false, true, false})[1]);
  }

  void plain(Values& values, const Call& call) const override {
    values.put(of_.writes, convolve(values.get(of_.reads), call.weights.get(of_.weight)));
  }

 private:
  at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight) const {
    return at::conv3d(x, weight, /*bias=*/{}, at::IntArrayRef{of_.time_stride, 2, 2}, at::IntArrayRef{1, 1, 1});
  }

  std::array<at::Tensor, 2> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                     std::array<bool, 3> wanted) const {
    auto [dx, dweight, dbias] =
        at::convolution_backward(dy, x, weight, /*bias_sizes=*/at::OptionalIntArrayRef(), {of_.time_stride, 2, 2}, {1, 1, 1},
                                 /*dilation=*/{1, 1, 1}, /*transposed=*/false, /*output_padding=*/{0, 0, 0},
                                 /*groups=*/1, wanted);
    return {dx, dweight};
  }

  Convolution of_;
  Card card_;
};

class Cnn3d final : public Model {
 public:
  explicit Cnn3d(const Cnn3dShape& shape) : shape_(shape) {
    std::string reads = "pixels";
    int64_t frames = shape.frames, size = shape.size;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string writes = fmt::format("hidden.{}", layer);
      frames = (frames + time_stride_of(layer) - 1) / time_stride_of(layer), size = (size + 1) / 2;
      add_layer(layer, reads, writes, frames * size * size);
      reads = writes;
    }
    add_pooled_head(reads);
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    Buffers buffers;
    for (int64_t layer = 0; layer < shape_.layers; ++layer)
      add_batch_norm_buffers(buffers, fmt::format("layers.{}.norm", layer), channels_of(shape_, layer), options);
    return buffers;
  }

 private:
  void add_layer(int64_t layer, const std::string& reads, const std::string& writes, int64_t positions) {
    const std::string name = fmt::format("layers.{}", layer), made = fmt::format("convolved.{}", layer);
    const int64_t in = layer == 0 ? 1 : channels_of(shape_, layer - 1), out = channels_of(shape_, layer);
    const mesh::ParamId weight = Model::add({.name = name + ".conv.weight",
                                             .shape = {out, in, kKernel, kKernel, kKernel},
                                             .axes = {"channels", "embed", "time", "height", "width"},
                                             .deviation = std::sqrt(2.0 / static_cast<double>(kTaps * in))});
    Model::add(std::make_unique<Conv3d>(Convolution{.name = name + ".conv",
                                                    .reads = reads,
                                                    .writes = made,
                                                    .weight = weight,
                                                    .in = in,
                                                    .out = out,
                                                    .time_stride = time_stride_of(layer),
                                                    .positions = positions,
                                                    .first = layer == 0}));
    const mesh::ParamId gain = Model::add({.name = name + ".norm.weight",
                                           .shape = {out},
                                           .axes = {"channels"},
                                           .role = Parameter::Role::norm,
                                           .init = Parameter::Init::ones});
    const mesh::ParamId shift = Model::add(
        {.name = name + ".norm.bias", .shape = {out}, .axes = {"channels"}, .role = Parameter::Role::bias, .init = Parameter::Init::zeros});
    Model::add(make_batch_norm_block({.name = name + ".norm",
                                      .reads = made,
                                      .writes = writes,
                                      .gain = gain,
                                      .shift = shift,
                                      .values = out * positions,
                                      .channels = out}));
  }

  void add_pooled_head(const std::string& reads) {
    const int64_t width = channels_of(shape_, shape_.layers - 1);
    const mesh::ParamId weight = Model::add({.name = "head.weight",
                                             .shape = {shape_.classes, width},
                                             .axes = {"classes", "channels"},
                                             .role = Parameter::Role::head,
                                             .deviation = 1 / std::sqrt(static_cast<double>(width))});
    Card card{.name = "head",
              .reads = {reads},
              .writes = {"logits"},
              .operations = {{.name = "pool", .axes = {"channels"}, .width = width},
                             {.name = "linear",
                              .kind = BlockOp::Kind::product,
                              .parameters = {weight},
                              .axes = {"classes"},
                              .flops_per_token = 2.0 * static_cast<double>(shape_.classes * width)}}};
    Model::add(make_autograd_block(std::move(card),
                                   [](const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters, const Call&) {
                                     return std::vector<at::Tensor>{at::matmul(inputs[0].mean({2, 3, 4}), parameters[0].t())};
                                   }));
  }

  Cnn3dShape shape_;
};

}  // namespace

std::unique_ptr<Model> make_cnn3d(const Cnn3dShape& shape) { return std::make_unique<Cnn3d>(shape); }

int64_t cnn3d_time_stride(int64_t layers) {
  int64_t stride = 1;
  for (int64_t layer = 0; layer < layers; ++layer) stride *= time_stride_of(layer);
  return stride;
}

int64_t cnn3d_space_stride(int64_t layers) { return int64_t{1} << layers; }

}  // namespace cairn::model
