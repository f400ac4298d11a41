// With W = U diag(s) V^T of m outputs and n inputs, k = min(m, n), and G = dL/dW:
//
//   y = U (s .* a),  a = V^T x           dx = V (s .* e),  e = U^T dy
//   ds_i = u_i^T G v_i = sum over tokens of a_i e_i            of all i
//   du_i = G v_i       = sum over tokens of dy a_i             of active i; the derivative has a factor s_i that is left out (enhanced)
//   dv_i = G^T u_i     = sum over tokens of x e_i
//
// Two paths. factored computes a and e for each token: T (m + n) (6 k + 2 r) operations for T tokens with all gradients. dense puts W
// together for each product and projects G: 6 T m n + m n (6 k + 2 r). With tensor parallelism the same formulas hold for a rank's part of
// the outputs or inputs: what is replicated receives a part of its gradient on each rank, and these are summed.
#include "model/decoder/spectral_weight.h"

#include <algorithm>
#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/card.h"
#include "model/decoder/dense_product.h"
#include "model/formed_weights.h"
#include "model/model.h"

namespace cairn::model {
namespace {

constexpr double kZeroValue = 1e-6;  // of the largest: a product in fp32 has no smaller singular values but by rounding

class SpectralWeight final : public WeightForm {
 public:
  SpectralWeight(Parameter dense, const SpectralOptions& options, mesh::ParamId u, mesh::ParamId v, mesh::ParamId s)
      : dense_(std::move(dense)), options_(options), u_(u), v_(v), s_(s) {}

  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto) const override {
    const SpectralFactors f = factors(call);
    if (is_dense(x.size(0), f)) return dense_product(y, x, weight(f), /*fan_in_fan_out=*/false, onto);
    const at::Tensor a = inner(x, f.v).mul_(f.s);
    dense_product(y, a, f.u, /*fan_in_fan_out=*/true, onto);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, bool accumulate) const override {
    const SpectralFactors f = factors(call);
    if (is_dense(dy.size(0), f)) return dense_input_gradient(dx, dy, weight(f), /*fan_in_fan_out=*/false, accumulate);
    dense_input_gradient(dx, inner(dy, f.u).mul_(f.s), f.v, /*fan_in_fan_out=*/false, accumulate);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const mesh::ParamId u{u_.first}, v{v_.first};
    const SpectralFactors f = factors(call);
    const int64_t rank = options_.rank;
    if (is_dense(x.size(0), f)) {
      const at::Tensor g = dense_weight_gradient(x, dy, /*fan_in_fan_out=*/false);
      const at::Tensor wide_u = f.u.to(g.scalar_type()), wide_v = f.v.to(g.scalar_type());
      const at::Tensor gv = at::mm(g, wide_v.t());  // [out, values]
      const at::Tensor scale = true_scale(f, g.scalar_type());
      into.add(s_, (gv * wide_u.t()).sum(0));
      into.add(u, scaled(gv.narrow(1, 0, rank).t(), scale));
      into.add(v, scaled(at::mm(wide_u.narrow(0, 0, rank), g), scale));
      return;
    }
    const at::Tensor a = inner(x, f.v), e = inner(dy, f.u);
    const auto wide = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    into.add(s_, (a.to(wide) * e.to(wide)).sum(0));
    const at::Tensor scale = true_scale(f, a.scalar_type());
    const auto active = [&](const at::Tensor& all) {
      const at::Tensor some = all.narrow(1, 0, rank);
      return scale.defined() ? some * scale : some;
    };
    into.outer(u, dy, active(a));
    into.outer(v, x, active(e));
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    const SpectralFactors f = factors(call);
    return at::matmul(at::matmul(x, f.v.t()) * f.s, f.u);
  }

  at::Tensor dense(const Call& call) const override {
    const at::Tensor w = weight(factors(call));
    return dense_.fan_in_fan_out ? w.t().contiguous() : w;
  }

  const Parameter& dense_parameter() const override { return dense_; }
  bool stores_dense() const override { return false; }
  std::vector<mesh::ParamId> parameters() const override { return {u_, v_, s_}; }

  void start(const at::Tensor& dense, const std::function<at::Tensor(mesh::ParamId)>& whole) const override {
    const SpectralFactors f = decompose(dense_.fan_in_fan_out ? dense.t() : dense);
    if (!f.s.defined()) base::fail_input("{}: it has values that are not finite, and no singular values", dense_.name);
    const auto write = [&](mesh::ParamId id, const at::Tensor& values) {
      int64_t next = 0;
      for (int32_t i = id.first; i < id.first + id.count; ++i) {
        const at::Tensor part = whole({i});
        part.copy_(values.narrow(0, next, part.size(0)));
        next += part.size(0);
      }
    };
    write(u_, f.u);
    write(v_, f.v);
    write(s_, f.s);
  }

  Widths widths(const Call& call) const override {
    return {.in = call.weights.get({v_.first}).size(1), .out = call.weights.get({u_.first}).size(1)};
  }
  void describe(BlockOp& /*operation*/) const override {}
  const char* name() const override { return "spectral"; }

  SpectralLayer layer() const {
    SpectralLayer one{.name = dense_.name, .u = u_.first, .v = v_.first, .s = s_.first};
    if (u_.count == 2) one.u_frozen = u_.first + 1, one.v_frozen = v_.first + 1;
    one.in = dense_.shape[dense_.fan_in_fan_out ? 0 : 1];
    one.out = dense_.shape[dense_.fan_in_fan_out ? 1 : 0];
    one.rank = options_.rank;
    one.values = std::min(one.in, one.out);
    one.fan_in_fan_out = dense_.fan_in_fan_out;
    return one;
  }

 private:
  // This rank's parts; s is whole.
  SpectralFactors factors(const Call& call) const {
    return {.u = call.weights.get(u_), .s = call.weights.get(s_), .v = call.weights.get(v_)};
  }

  static at::Tensor weight(const SpectralFactors& f) { return at::mm((f.u * f.s.unsqueeze(1)).t(), f.v); }

  // rows times vectors, [rows, values].
  static at::Tensor inner(const at::Tensor& rows, const at::Tensor& vectors) {
    const at::Tensor result = at::empty({rows.size(0), vectors.size(0)}, rows.options());
    dense_product(result, rows, vectors, /*fan_in_fan_out=*/false);
    return result;
  }

  // Whether the dense path is cheaper, for all products of a pass over so many rows.
  bool is_dense(int64_t rows, const SpectralFactors& f) const {
    if (options_.path != SpectralPath::automatic) return options_.path == SpectralPath::dense;
    const auto t = static_cast<double>(rows), m = static_cast<double>(f.u.size(1)), n = static_cast<double>(f.v.size(1)),
               per_pair = static_cast<double>(6 * f.s.size(0) + 2 * options_.rank);
    return 6 * t * m * n + m * n * per_pair < t * (m + n) * per_pair;
  }

  // The singular values of the active pairs, which true derivatives are multiplied by; undefined: they are left out.
  at::Tensor true_scale(const SpectralFactors& f, at::ScalarType dtype) const {
    return options_.enhanced ? at::Tensor() : f.s.narrow(0, 0, options_.rank).to(dtype);
  }
  static at::Tensor scaled(const at::Tensor& vectors, const at::Tensor& scale) {
    return scale.defined() ? vectors * scale.unsqueeze(1) : vectors;
  }

  Parameter dense_;
  SpectralOptions options_;
  mesh::ParamId u_, v_;  // the active vectors, and the frozen ones behind them
  mesh::ParamId s_;
};

class SpectralRule final : public WeightFormRule {
 public:
  explicit SpectralRule(SpectralOptions options) : options_(options) {}

  Kind kind_of(const Parameter&) const override { return Kind::replaced; }

  std::shared_ptr<const WeightForm> make(Model& model, const Parameter& dense, std::optional<mesh::ParamId>) const override {
    const size_t in = dense.fan_in_fan_out ? 0 : 1, out = 1 - in;
    const int64_t values = std::min(dense.shape[0], dense.shape[1]);
    if (options_.rank > values)
      base::fail_input("model.spectral.rank = {}: {} has {} singular values. Use at most {}.", options_.rank, dense.name, values, values);
    const std::string base = dense.name.substr(0, dense.name.rfind('.') + 1) + "spectral_";
    const auto vectors = [&](const char* name, size_t side) {
      Parameter one{.name = base + name, .shape = {options_.rank, dense.shape[side]}, .axes = {"rank", dense.axes[side]}};
      one.init = Parameter::Init::zeros;
      one.head_width = dense.head_width;
      one.queries_per_key = dense.queries_per_key;
      one.decay = false;  // they have unit length
      mesh::ParamId id = model.add(one);
      if (options_.rank == values) return id;
      one.name += "_frozen";
      one.shape[0] = values - options_.rank;
      one.is_trainable = false;
      model.add(std::move(one));
      id.count = 2;
      return id;
    };
    const mesh::ParamId u = vectors("u", out), v = vectors("v", in);
    Parameter s{.name = base + "s", .shape = {values}, .axes = {"rank"}};
    s.init = Parameter::Init::zeros;
    s.decay = true;
    return std::make_shared<SpectralWeight>(dense, options_, u, v, model.add(std::move(s)));
  }

 private:
  SpectralOptions options_;
};

}  // namespace

std::shared_ptr<const WeightFormRule> make_spectral_rule(SpectralOptions options) { return std::make_shared<SpectralRule>(options); }

std::vector<SpectralLayer> spectral_layers(const Model& model) {
  std::vector<SpectralLayer> layers;
  for (const WeightForm* form : weight_forms(model))
    if (const auto* spectral = dynamic_cast<const SpectralWeight*>(form)) layers.push_back(spectral->layer());
  return layers;
}

namespace {

// `more` unit vectors that are orthogonal to each other and to the columns of `found`. They follow from the space that these columns span,
// not from their rounding.
at::Tensor completed(const at::Tensor& found, int64_t more) {
  const int64_t rows = found.size(0);
  at::Tensor start = at::arange(1, rows * more + 1, found.options()).square_().mul_(0.7).sin_().view({rows, more});
  for (int twice = 0; twice < 2; ++twice) start = start - at::mm(found, at::mm(found.t(), start));
  const auto [q, r] = at::linalg_qr(start, "reduced");
  return q * r.diagonal().ge(0).to(q.scalar_type()).mul(2).sub(1);
}

}  // namespace

SpectralFactors decompose(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = weight.is_cuda() ? weight.to(at::kFloat) : weight.to(at::kDouble);
  if (!at::isfinite(wide).all().item<bool>()) return {};
  auto [u, s, vh] = at::linalg_svd(wide, /*full_matrices=*/false);
  const at::Tensor largest = u.gather(0, u.abs().argmax(0, /*keepdim=*/true));  // of each column
  const at::Tensor sign = largest.ge(0).to(wide.scalar_type()).mul(2).sub(1);   // [1, values]
  u = u * sign;
  at::Tensor v = vh.t() * sign;
  // Vectors of values that are zero but for rounding would be those of the rounding.
  const int64_t values = s.size(0);
  const int64_t kept = s.gt(s[0] * kZeroValue).sum().item<int64_t>();
  if (kept < values) {
    s.narrow(0, kept, values - kept).zero_();
    u = at::cat({u.narrow(1, 0, kept), completed(u.narrow(1, 0, kept), values - kept)}, 1);
    v = at::cat({v.narrow(1, 0, kept), completed(v.narrow(1, 0, kept), values - kept)}, 1);
  }
  return {.u = u.t().to(at::kFloat).contiguous(), .s = s.to(at::kFloat), .v = v.t().to(at::kFloat).contiguous()};
}

at::Tensor spectral_product(const SpectralFactors& f) { return at::mm((f.u * f.s.unsqueeze(1)).t(), f.v); }

}  // namespace cairn::model
