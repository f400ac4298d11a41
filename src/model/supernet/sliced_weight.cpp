#include "model/supernet/sliced_weight.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/aten.h"
#include "model/card.h"
#include "model/decoder/dense_product.h"
#include "model/decoder/local_pieces.h"
#include "model/model.h"
#include "model/supernet/subnet.h"

namespace cairn::model {
namespace {

constexpr const char* kMiddleAxis = "mlp";

std::optional<size_t> middle_dim(const Parameter& parameter) {
  const auto found = std::ranges::find(parameter.axes, kMiddleAxis);
  if (found == parameter.axes.end()) return std::nullopt;
  return static_cast<size_t>(found - parameter.axes.begin());
}

class SlicedWeight final : public WeightForm {
 public:
  SlicedWeight(Parameter dense, mesh::ParamId weight, size_t layer)
      : dense_(std::move(dense)), weight_(weight), layer_(layer), dim_(*middle_dim(dense_)) {}

  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto) const override {
    dense_product(y, x, dense(call), dense_.fan_in_fan_out, onto);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, bool accumulate) const override {
    dense_input_gradient(dx, dy, dense(call), dense_.fan_in_fan_out, accumulate);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const at::Tensor whole = call.weights.get(weight_);
    if (active(call) == whole.size(static_cast<int64_t>(dim_)))
      return dense_.fan_in_fan_out ? into.outer(weight_, dy, x) : into.outer(weight_, x, dy);
    if (into.wants(weight_)) into.add(weight_, padded(dense_weight_gradient(x, dy, dense_.fan_in_fan_out), whole.sizes().vec()));
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    const at::Tensor w = dense(call);
    return at::matmul(x, dense_.fan_in_fan_out ? w : w.t());
  }

  at::Tensor dense(const Call& call) const override {
    const at::Tensor whole = call.weights.get(weight_);
    return call.subnet ? whole.narrow(static_cast<int64_t>(dim_), 0, active(call)) : whole;
  }

  const Parameter& dense_parameter() const override { return dense_; }
  bool stores_dense() const override { return true; }
  std::vector<mesh::ParamId> parameters() const override { return {weight_}; }
  Widths widths(const Call& call) const override {
    const at::Tensor w = dense(call);
    return dense_.fan_in_fan_out ? Widths{w.size(0), w.size(1)} : Widths{w.size(1), w.size(0)};
  }
  void describe(BlockOp& /*operation*/) const override {}
  const char* name() const override { return "a part of a supernet's"; }

 private:
  // How many of this rank's channels the subnet has: its channels come in ascending order, so they are the first ones.
  int64_t active(const Call& call) const {
    const int64_t whole = dense_.shape[dim_], width = width_in(call, layer_, whole);
    int64_t count = 0;
    for (const mesh::Interval& piece : local_pieces(weight_, dense_.shape, dim_, call))
      count += std::clamp<int64_t>(width - piece.begin, 0, piece.length());
    return count;
  }

  Parameter dense_;
  mesh::ParamId weight_;
  size_t layer_, dim_;
};

class SlicedRule final : public WeightFormRule {
 public:
  SlicedRule(std::vector<std::string> layers, std::vector<int64_t> widths) : layers_(std::move(layers)) {
    int64_t before = 0;
    for (const int64_t width : widths) sections_.push_back(width - std::exchange(before, width));
  }

  Kind kind_of(const Parameter& dense) const override { return middle_dim(dense) && layer_of(dense) ? Kind::stored : Kind::plain; }

  std::shared_ptr<const WeightForm> make(Model& model, const Parameter& dense, std::optional<mesh::ParamId> weight) const override {
    // The bias of these channels is split along tp as they are.
    const std::string bias = dense.name.substr(0, dense.name.rfind('.') + 1) + "bias";
    for (Parameter& one : model.parameters())
      if (one.name == dense.name || (one.name == bias && middle_dim(one))) one.sections = sections_;
    return std::make_shared<SlicedWeight>(dense, *weight, *layer_of(dense));
  }

 private:
  std::optional<size_t> layer_of(const Parameter& dense) const {
    const auto found = std::ranges::find_if(layers_, [&](const std::string& layer) { return dense.name.starts_with(layer); });
    if (found == layers_.end()) return std::nullopt;
    return static_cast<size_t>(found - layers_.begin());
  }

  std::vector<std::string> layers_;
  std::vector<int64_t> sections_;  // channels between two widths
};

}  // namespace

std::shared_ptr<const WeightFormRule> make_sliced_rule(std::vector<std::string> layers, std::vector<int64_t> widths) {
  return std::make_shared<SlicedRule>(std::move(layers), std::move(widths));
}

}  // namespace cairn::model
