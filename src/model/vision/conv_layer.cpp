#include "model/vision/conv_layer.h"

#include <array>
#include <utility>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/decoder/rows.h"
#include "model/supernet/subnet.h"

namespace cairn::model {
namespace {

// A view of [samples, height, width, channels] as libtorch's convolutions take it, in its channels-last format.
at::Tensor channels_second(const at::Tensor& x) { return x.permute({0, 3, 1, 2}); }
at::Tensor channels_last(const at::Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous(); }

at::Tensor product(const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  kernels::linear(y, x, w);
  return y;
}

at::Tensor product_input_gradient(const at::Tensor& dy, const at::Tensor& w) {
  const at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  kernels::linear_backward_input(dx, dy, w);
  return dx;
}

// A convolution of each channel by itself, of [samples, height, width, channels] with weights [channels, kernel, kernel].
struct Depthwise {
  int64_t kernel, stride;

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight) const {
    return channels_last(at::conv2d(channels_second(x), weight.unsqueeze(1), /*bias=*/{}, stride, kernel / 2, 1, x.size(3)));
  }
  // The gradient of the input, or of the weight.
  std::array<at::Tensor, 2> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, bool of_input) const {
    auto [dx, dweight, dbias] = at::convolution_backward(
        channels_second(dy), channels_second(x), weight.unsqueeze(1), /*bias_sizes=*/at::OptionalIntArrayRef(), {stride, stride},
        {kernel / 2, kernel / 2}, {1, 1}, /*transposed=*/false, {0, 0}, x.size(3), {of_input, !of_input, false});
    return {of_input ? channels_last(dx) : dx, of_input ? dweight : dweight.squeeze(1)};
  }
};

class ConvLayerBlock final : public Block {
 public:
  explicit ConvLayerBlock(ConvLayer layer) : of_(std::move(layer)), depthwise_{of_.kernel, of_.stride} {
    const auto in = static_cast<double>(of_.in), middle = static_cast<double>(of_.middle), out = static_cast<double>(of_.out);
    const auto positions = static_cast<double>(of_.positions);
    const double after = positions / static_cast<double>(of_.stride * of_.stride);
    card_ = {.name = of_.name, .reads = {of_.reads}, .writes = {of_.writes}};
    const auto add = [&](BlockOp operation) { card_.operations.push_back(std::move(operation)); };
    add({.name = "expand",
         .kind = BlockOp::Kind::product,
         .parameters = {of_.expand},
         .axes = {"middle"},
         .flops_per_token = 2 * positions * in * middle,
         .saved_elements_per_token = positions * (in + middle)});
    const auto add_norm = [&](const ChannelNorm& norm, const char* name, double pixels) {
      add({.name = name,
           .parameters = {norm.gain, norm.shift},
           .axes = {"middle"},
           .saved_elements_per_token = pixels * middle,
           .width = of_.middle});
      for (const char* buffer : {".running_mean", ".running_var", ".pending"}) card_.buffers.push_back(norm.name + buffer);
    };
    add_norm(of_.expand_norm, "expand_norm", positions);
    if (of_.looks_at_neighbours()) {
      add({.name = "depthwise",
           .parameters = {of_.depthwise},
           .axes = {"middle"},
           .flops_per_token = 2 * after * middle * static_cast<double>(of_.kernel * of_.kernel),
           .saved_elements_per_token = after * middle,
           .width = of_.middle});
      add_norm(of_.depthwise_norm, "depthwise_norm", after);
    }
    add({.name = "project",
         .kind = BlockOp::Kind::product,
         .parameters = {of_.project},
         .axes = {"channels"},
         .flops_per_token = 2 * after * middle * out});
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(of_.reads);
    if (!runs_in(call, of_.stage, of_.place)) return values.put(of_.writes, x);
    const int64_t middle = active(call);
    at::Tensor h = of_.expand_norm.forward(product(rows(x), expand(call, middle)), keep, call);
    if (keep) keep->put("x", x), keep->put("expanded", h);
    std::vector<int64_t> sizes = x.sizes().vec();
    if (of_.looks_at_neighbours()) {
      const at::Tensor mixed =
          depthwise_.forward(h.view({sizes[0], sizes[1], sizes[2], middle}), call.weights.get(of_.depthwise).narrow(0, 0, middle));
      sizes = mixed.sizes().vec();
      h = of_.depthwise_norm.forward(rows(mixed), keep, call);
      if (keep) keep->put("mixed", h);
    }
    const at::Tensor y = at::empty({h.size(0), of_.out}, h.options()), onto = rows(x);
    kernels::linear(y, h, project(call, middle), of_.is_residual() ? &onto : nullptr);
    values.put(of_.writes, y.view({sizes[0], sizes[1], sizes[2], of_.out}));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(of_.writes);
    if (!runs_in(call, of_.stage, of_.place)) return gradients.add(of_.reads, dy);
    const int64_t middle = active(call);
    const at::Tensor x = saved.get("x"), dy_rows = rows(dy);
    at::Tensor dh = product_input_gradient(dy_rows, project(call, middle));
    if (of_.looks_at_neighbours()) {
      const at::Tensor dmixed = of_.depthwise_norm.input_gradient(dh, saved, call).view({dy.size(0), dy.size(1), dy.size(2), middle});
      const at::Tensor expanded = saved.get("expanded").view({x.size(0), x.size(1), x.size(2), middle});
      const at::Tensor weight = call.weights.get(of_.depthwise).narrow(0, 0, middle);
      dh = rows(depthwise_.backward(dmixed, expanded, weight, /*of_input=*/true)[0]);
      saved.put("dmixed", dmixed);
      saved.put("depthwise", weight);
    }
    const at::Tensor da = of_.expand_norm.input_gradient(dh, saved, call);
    const at::Tensor dx = product_input_gradient(da, expand(call, middle));
    if (of_.is_residual()) dx.add_(dy_rows);
    gradients.add(of_.reads, dx.view(x.sizes()));
    saved.put("da", da);
    saved.put("dy", dy_rows);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    if (!runs_in(call, of_.stage, of_.place)) {  // counts as zero
      for (const BlockOp& operation : card_.operations)
        for (const mesh::ParamId& id : operation.parameters) into.skip(id);
      return;
    }
    const at::Tensor x = saved.take("x"), expanded = saved.take("expanded");
    add_outer_prefix(into, of_.project, of_.looks_at_neighbours() ? saved.get("mixed") : expanded, saved.take("dy"), {of_.out, of_.middle});
    if (of_.looks_at_neighbours()) {
      of_.depthwise_norm.weight_gradient(saved, into);
      const at::Tensor dmixed = saved.take("dmixed");
      const std::vector<int64_t> sizes{x.size(0), x.size(1), x.size(2), expanded.size(1)};
      const at::Tensor dweight = depthwise_.backward(dmixed, expanded.view(sizes), saved.take("depthwise"), /*of_input=*/false)[1];
      into.add(of_.depthwise, padded(dweight, {of_.middle, of_.kernel, of_.kernel}));
    }
    of_.expand_norm.weight_gradient(saved, into);
    add_outer_prefix(into, of_.expand, rows(x), saved.take("da"), {of_.middle, of_.in});
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(of_.reads);
    if (!runs_in(call, of_.stage, of_.place)) return values.put(of_.writes, x);
    const int64_t middle = active(call);
    at::Tensor h = of_.expand_norm.plain(at::matmul(x.flatten(0, 2), expand(call, middle).t()), call);
    std::vector<int64_t> sizes = x.sizes().vec();
    if (of_.looks_at_neighbours()) {
      const at::Tensor mixed =
          depthwise_.forward(h.view({sizes[0], sizes[1], sizes[2], middle}), call.weights.get(of_.depthwise).narrow(0, 0, middle));
      sizes = mixed.sizes().vec();
      h = of_.depthwise_norm.plain(mixed.flatten(0, 2), call);
    }
    const at::Tensor y = at::matmul(h, project(call, middle).t()).view({sizes[0], sizes[1], sizes[2], of_.out});
    values.put(of_.writes, of_.is_residual() ? x + y : y);
  }

 private:
  int64_t active(const Call& call) const { return width_in(call, of_.layer, of_.middle); }
  at::Tensor expand(const Call& call, int64_t middle) const { return call.weights.get(of_.expand).narrow(0, 0, middle); }
  at::Tensor project(const Call& call, int64_t middle) const { return call.weights.get(of_.project).narrow(1, 0, middle); }

  ConvLayer of_;
  Depthwise depthwise_;
  Card card_;
};

class ConvStemBlock final : public Block {
 public:
  explicit ConvStemBlock(ConvStem stem) : of_(std::move(stem)) {
    const auto values = static_cast<double>(of_.channels * of_.kernel * of_.kernel);
    const auto after = static_cast<double>(of_.positions) / static_cast<double>(of_.stride * of_.stride);
    card_ = {.name = "stem",
             .reads = {"pixels"},
             .writes = {of_.writes},
             .operations = {{.name = "convolution",
                             .parameters = {of_.weight},
                             .axes = {"channels"},
                             .flops_per_token = 2 * after * values * static_cast<double>(of_.out),
                             .saved_elements_per_token = static_cast<double>(of_.positions * of_.channels),
                             .width = of_.out}}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get("pixels"), weight = call.weights.get(of_.weight);
    if (keep) keep->put("x", x);
    values.put(of_.writes, convolved(x, weight));
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    saved.put("dy", gradients.take(of_.writes));
    saved.put("weight", call.weights.get(of_.weight));
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor x = saved.take("x"), dy = saved.take("dy");
    if (of_.kernel == 1 && of_.stride == 1) {
      const at::Tensor dw = at::empty({of_.out, of_.channels}, x.options());
      kernels::linear_backward_weight(dw, rows(dy), rows(channels_last(x)));
      return into.add(of_.weight, dw.view({of_.out, of_.channels, 1, 1}));
    }
    const int64_t pad = of_.kernel / 2;
    into.add(of_.weight,
             std::get<1>(at::convolution_backward(channels_second(dy).contiguous(), x, saved.take("weight"),
                                                  /*bias_sizes=*/at::OptionalIntArrayRef(), {of_.stride, of_.stride}, {pad, pad}, {1, 1},
                                                  /*transposed=*/false, {0, 0}, /*groups=*/1, {false, true, false})));
  }

  void plain(Values& values, const Call& call) const override {
    values.put(of_.writes, convolved(values.get("pixels"), call.weights.get(of_.weight)));
  }

 private:
  at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight) const {
    if (of_.kernel == 1 && of_.stride == 1) return at::matmul(channels_last(x), weight.view({of_.out, of_.channels}).t());
    return channels_last(at::conv2d(x, weight, /*bias=*/{}, of_.stride, of_.kernel / 2));
  }

  ConvStem of_;
  Card card_;
};

class ConvHeadBlock final : public Block {
 public:
  explicit ConvHeadBlock(ConvHead head) : of_(std::move(head)) {
    card_ = {.name = "head",
             .reads = {of_.reads},
             .writes = {"logits"},
             .operations = {{.name = "norm", .parameters = {of_.norm.gain, of_.norm.shift}, .axes = {"channels"}, .width = of_.width},
                            {.name = "pool", .axes = {"channels"}, .width = of_.width},
                            {.name = "linear",
                             .kind = BlockOp::Kind::product,
                             .parameters = {of_.weight, of_.bias},
                             .axes = {"classes"},
                             .flops_per_token = 2.0 * static_cast<double>(of_.width * of_.classes),
                             .saved_elements_per_token = static_cast<double>(of_.width)}}};
    for (const char* buffer : {".running_mean", ".running_var", ".pending"}) card_.buffers.push_back(of_.norm.name + buffer);
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(of_.reads);
    const at::Tensor pooled = of_.norm.forward(rows(x), keep, call).view(x.sizes()).mean({1, 2});
    const at::Tensor logits = product(pooled, call.weights.get(of_.weight));
    logits.add_(call.weights.get(of_.bias));
    values.put("logits", logits);
    if (!keep) return;
    keep->put("pooled", pooled);
    keep->put("x", x);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dlogits = gradients.take("logits").contiguous(), x = saved.take("x");
    const at::Tensor dpooled = product_input_gradient(dlogits, call.weights.get(of_.weight));
    const at::Tensor spread = (dpooled / static_cast<double>(x.size(1) * x.size(2))).view({x.size(0), 1, 1, of_.width}).expand(x.sizes());
    gradients.add(of_.reads, of_.norm.input_gradient(rows(spread.contiguous()), saved, call).view(x.sizes()));
    saved.put("dlogits", dlogits);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor dlogits = saved.take("dlogits");
    into.add_sum(of_.bias, dlogits);
    into.outer(of_.weight, saved.take("pooled"), dlogits);
    of_.norm.weight_gradient(saved, into);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(of_.reads);
    const at::Tensor pooled = of_.norm.plain(x.flatten(0, 2), call).view(x.sizes()).mean({1, 2});
    values.put("logits", at::linear(pooled, call.weights.get(of_.weight), call.weights.get(of_.bias)));
  }

 private:
  ConvHead of_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_conv_layer(ConvLayer layer) { return std::make_unique<ConvLayerBlock>(std::move(layer)); }
std::unique_ptr<Block> make_conv_stem(ConvStem stem) { return std::make_unique<ConvStemBlock>(std::move(stem)); }
std::unique_ptr<Block> make_conv_head(ConvHead head) { return std::make_unique<ConvHeadBlock>(std::move(head)); }

}  // namespace cairn::model
