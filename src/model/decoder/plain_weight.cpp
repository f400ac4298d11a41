#include <utility>

#include "kernels/aten.h"
#include "model/card.h"
#include "model/decoder/dense_product.h"
#include "model/decoder/weight_form.h"

namespace cairn::model {
namespace {

class PlainWeight final : public WeightForm {
 public:
  PlainWeight(Parameter dense, mesh::ParamId weight) : dense_(std::move(dense)), weight_(weight) {}

  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto) const override {
    dense_product(y, x, dense(call), dense_.fan_in_fan_out, onto);
  }
  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, bool accumulate) const override {
    dense_input_gradient(dx, dy, dense(call), dense_.fan_in_fan_out, accumulate);
  }
  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& /*call*/) const override {
    dense_.fan_in_fan_out ? into.outer(weight_, dy, x) : into.outer(weight_, x, dy);
  }
  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    const at::Tensor w = dense(call);
    return at::matmul(x, dense_.fan_in_fan_out ? w : w.t());
  }
  at::Tensor dense(const Call& call) const override { return call.weights.get(weight_); }
  const Parameter& dense_parameter() const override { return dense_; }
  bool stores_dense() const override { return true; }
  std::vector<mesh::ParamId> parameters() const override { return {weight_}; }
  Widths widths(const Call& call) const override {
    const at::Tensor w = dense(call);
    return dense_.fan_in_fan_out ? Widths{w.size(0), w.size(1)} : Widths{w.size(1), w.size(0)};
  }
  void describe(BlockOp& /*operation*/) const override {}
  const char* name() const override { return "plain"; }

 private:
  Parameter dense_;
  mesh::ParamId weight_;
};

}  // namespace

std::shared_ptr<const WeightForm> make_plain_weight(Parameter dense, mesh::ParamId weight) {
  return std::make_shared<PlainWeight>(std::move(dense), weight);
}

}  // namespace cairn::model
