// With the mask m, s = alpha / rank, and G = dL/dw' for the weight w' that the layer multiplies by:
//
//   masked      w' = m .* w                dw = m .* G
//   mask_lora   w' = m .* (w + s b a)      dw = m .* G             db = s (m .* G) a^T           da = s b^T (m .* G)
//   scale_lora  w' = m .* w .* (b a)       dw = m .* G .* (b a)    db = (m .* G .* w) a^T        da = b^T (m .* G .* w)
//
// w' and G are temporaries of one call, made again in backward. Pruned places are filled with 0, not multiplied by it, so they are exactly
// 0 whatever w holds there. The mask is whole on every rank; ranks along tp take their part of it, of a and of b.
#include "model/decoder/masked_weight.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"
#include "model/bit_mask.h"
#include "model/decoder/dense_product.h"
#include "model/decoder/local_pieces.h"
#include "model/model.h"

namespace cairn::model {
namespace {

at::Tensor take_mask_rows(const at::Tensor& whole, const std::vector<mesh::Interval>& pieces) {
  if (is_whole(pieces, whole.size(0))) return whole;
  std::vector<at::Tensor> parts;
  for (const mesh::Interval& piece : pieces) parts.push_back(whole.narrow(0, piece.begin, piece.length()));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

struct MaskedFactors {
  mesh::ParamId a, b;
};

class MaskedWeight final : public WeightForm {
 public:
  MaskedWeight(Parameter dense, mesh::ParamId weight, const SparseOptions& options, std::optional<MaskedFactors> factors)
      : dense_(std::move(dense)),
        weight_(weight),
        form_(options.form),
        scale_(options.form == SparseForm::mask_lora ? options.alpha / static_cast<double>(options.rank) : 1),
        factors_(factors),
        mask_(dense_.name + kMaskSuffix) {}

  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto) const override {
    dense_product(y, x, dense(call), dense_.fan_in_fan_out, onto);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, bool accumulate) const override {
    dense_input_gradient(dx, dy, dense(call), dense_.fan_in_fan_out, accumulate);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const bool of_weight = into.wants(weight_), of_factors = factors_ && (into.wants(factors_->a) || into.wants(factors_->b));
    if (!of_weight && !of_factors) return;
    const at::Tensor g = dense_weight_gradient(x, dy, dense_.fan_in_fan_out).masked_fill_(pruned(call), 0);
    if (of_weight) into.add(weight_, form_ == SparseForm::scale_lora ? g * factor_product(call) : g);
    if (!of_factors) return;
    if (form_ == SparseForm::scale_lora)
      g.mul_(call.weights.get(weight_));
    else
      g.mul_(scale_);
    const at::Tensor by_output = dense_.fan_in_fan_out ? g.t() : g;  // [out, in]
    const at::Tensor a = local_a(call).to(g.scalar_type()), b = local_b(call).to(g.scalar_type());
    into.add(factors_->a, spread_columns(at::mm(b.t(), by_output), inputs(call), whole_in()));
    into.add(factors_->b, spread_columns(at::mm(a, by_output.t()), outputs(call), whole_out()).t().contiguous());
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    const at::Tensor w = dense(call);
    return at::matmul(x, dense_.fan_in_fan_out ? w : w.t());
  }

  at::Tensor dense(const Call& call) const override {
    const at::Tensor w = call.weights.get(weight_), gone = pruned(call);
    if (!factors_) return w.masked_fill(gone, 0);
    const at::Tensor product = factor_product(call);
    return (form_ == SparseForm::scale_lora ? product * w : w + product * scale_).masked_fill(gone, 0);
  }

  const Parameter& dense_parameter() const override { return dense_; }
  bool stores_dense() const override { return true; }
  std::vector<mesh::ParamId> parameters() const override {
    if (!factors_) return {weight_};
    return {weight_, factors_->a, factors_->b};
  }
  Widths widths(const Call& call) const override {
    const at::Tensor w = call.weights.get(weight_);
    return dense_.fan_in_fan_out ? Widths{w.size(0), w.size(1)} : Widths{w.size(1), w.size(0)};
  }
  void describe(BlockOp& /*operation*/) const override {}
  void add_buffers(Buffers& into, const at::TensorOptions& options) const override { into[mask_] = full_mask(dense_.shape, options); }
  const char* name() const override { return base::enum_name(kSparseFormNames, form_); }

 private:
  std::vector<mesh::Interval> side(size_t dim, const Call& call) const { return local_pieces(weight_, dense_.shape, dim, call); }
  std::vector<mesh::Interval> inputs(const Call& call) const { return side(dense_.fan_in_fan_out ? 0 : 1, call); }
  std::vector<mesh::Interval> outputs(const Call& call) const { return side(dense_.fan_in_fan_out ? 1 : 0, call); }
  int64_t whole_in() const { return dense_.shape[dense_.fan_in_fan_out ? 0 : 1]; }
  int64_t whole_out() const { return dense_.shape[dense_.fan_in_fan_out ? 1 : 0]; }

  // Of this rank's part of the weight, the pruned places: bool, in the weight's layout.
  at::Tensor pruned(const Call& call) const {
    const at::Tensor bits = take_mask_rows(call.buffers.at(mask_), side(0, call));
    return take_columns(unpack_mask(bits, dense_.shape[1]), side(1, call)).logical_not();
  }

  at::Tensor local_a(const Call& call) const { return take_columns(call.weights.get(factors_->a), inputs(call)); }
  at::Tensor local_b(const Call& call) const { return take_mask_rows(call.weights.get(factors_->b), outputs(call)); }
  // b a in the weight's layout.
  at::Tensor factor_product(const Call& call) const {
    const at::Tensor a = local_a(call), b = local_b(call);
    return dense_.fan_in_fan_out ? at::mm(a.t(), b.t()) : at::mm(b, a);
  }

  Parameter dense_;
  mesh::ParamId weight_;
  SparseForm form_;
  double scale_;
  std::optional<MaskedFactors> factors_;
  std::string mask_;  // the buffer
};

class SparseRule final : public WeightFormRule {
 public:
  explicit SparseRule(SparseOptions options) : options_(std::move(options)) {}

  Kind kind_of(const Parameter& dense) const override {
    const bool masked = std::find(options_.weights.begin(), options_.weights.end(), dense.name) != options_.weights.end();
    return masked && options_.form != SparseForm::dense ? Kind::stored : Kind::plain;
  }

  // a and b are whole on every rank along tp: their own axes are never split.
  std::shared_ptr<const WeightForm> make(Model& model, const Parameter& dense, std::optional<mesh::ParamId> weight) const override {
    if (options_.form == SparseForm::masked) return std::make_shared<MaskedWeight>(dense, *weight, options_, std::nullopt);
    const int64_t in = dense.shape[dense.fan_in_fan_out ? 0 : 1], out = dense.shape[dense.fan_in_fan_out ? 1 : 0], rank = options_.rank;
    const bool scales = options_.form == SparseForm::scale_lora;
    const std::string at = dense.name.substr(0, dense.name.rfind('.') + 1) + base::enum_name(kSparseFormNames, options_.form);
    Parameter a{.name = at + "_A.weight", .shape = {rank, in}, .axes = {"rank", "inputs"}, .role = Parameter::Role::adapter};
    Parameter b{.name = at + "_B.weight", .shape = {out, rank}, .axes = {"outputs", "rank"}, .role = Parameter::Role::adapter};
    a.init = scales ? Parameter::Init::constant : Parameter::Init::normal;
    b.init = scales ? Parameter::Init::constant : Parameter::Init::zeros;
    a.deviation = b.deviation = scales ? 1 / std::sqrt(static_cast<double>(rank)) : 1 / std::sqrt(3.0 * static_cast<double>(in));
    const mesh::ParamId first = model.add(std::move(a));
    return std::make_shared<MaskedWeight>(dense, *weight, options_, MaskedFactors{first, model.add(std::move(b))});
  }

 private:
  SparseOptions options_;
};

}  // namespace

std::shared_ptr<const WeightFormRule> make_sparse_rule(SparseOptions options) { return std::make_shared<SparseRule>(std::move(options)); }

}  // namespace cairn::model
