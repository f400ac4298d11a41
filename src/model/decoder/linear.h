#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/gradients.h"
#include "model/call.h"
#include "model/decoder/adapter.h"
#include "model/decoder/operand.h"
#include "model/decoder/weight_form.h"

namespace cairn::model {

struct BlockOp;

// A linear layer y = x w^T + b. It hides from blocks where the weight comes from: one parameter or neighbours that are multiplied as one
// matrix, stored [out, in] or [in, out], in bf16 or fp8, in another form (weight_form.h), with or without adapters (adapter.h). x and y
// have free row strides.
struct Linear {
  mesh::ParamId weight = {};  // count 0: the model does not have it (forms)
  std::optional<mesh::ParamId> bias = {};
  bool fan_in_fan_out = false;  // the weight is stored [in, out], as GPT-2's are
  std::vector<PlacedAdapter> adapters = {};
  std::vector<std::shared_ptr<const WeightForm>> forms = {};  // of the weight and its neighbours; empty: all are plain

  // `made`, here and below, receives the fp8 codes of x or dy for the weight gradient, and may provide the amax. `weight_codes` receives
  // those of the weight, for later calls with the same weight. Both are unused where the layer is not fp8. `first_row`: the place of the
  // first of these rows among the tokens of the call (adapter.h).
  void forward(const at::Tensor& y /*[rows, out], overwritten*/, const at::Tensor& x /*[rows, in]*/, const Call& call,
               Operand* made = nullptr, kernels::Fp8Matrix* weight_codes = nullptr, int64_t first_row = 0) const;
  // forward in two parts, for a layer whose inputs are sharded: the products are reduced over tp, then the bias is added once.
  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto = nullptr /*added to it*/,
               Operand* made = nullptr, kernels::Fp8Matrix* weight_codes = nullptr, int64_t first_row = 0) const;
  void add_bias(const at::Tensor& y, const Call& call) const;
  void input_gradient(const at::Tensor& dx /*overwritten*/, const at::Tensor& dy, const Call& call, Operand* made = nullptr,
                      kernels::Fp8Matrix* weight_codes = nullptr, int64_t first_row = 0) const;
  // Quantizes dy in advance. input_gradient then uses the codes, so a large dy can be freed.
  static void quantize_gradient(Operand& into, const at::Tensor& dy);
  void weight_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const;
  void product_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const;
  void bias_gradient(mesh::Gradients& into, const at::Tensor& dy, const Call& call) const;
  bool is_fp8(const Call& call) const;
  // The weight [out, in] where the layer is just y = x w^T (no bias, adapter or fp8), so that a fused kernel can take it.
  std::optional<at::Tensor> bare_weight(const Call& call) const;
  bool needs_values() const { return bias || !adapters.empty(); }  // whether gradients need dy itself beside its codes
  // x [..., in]; differentiable.
  at::Tensor plain(const at::Tensor& x, const Call& call) const;
  // The quantized operands where the layer is just y = x w^T in fp8, for a fused kernel.
  struct Fp8Operands {
    kernels::Fp8Matrix x, w;
  };
  std::optional<Fp8Operands> fp8_operands(const at::Tensor& x, const Call& call, Operand* made) const;
  std::vector<mesh::ParamId> parameters() const;
  // Fills in the card entry of this layer.
  void describe(BlockOp& operation) const;
  // The local widths of the weight.
  int64_t in_width(const Call& call) const;
  int64_t out_width(const Call& call) const;

 private:
  Fp8Operands quantize_operands(const at::Tensor& x, const Call& call, Operand* made, kernels::Fp8Matrix* weight_codes = nullptr) const;
  // The columns of y that an adapter adds to.
  at::Tensor outputs(const at::Tensor& y, const PlacedAdapter& one, const Call& call) const;
  // Calls act(form, its columns of y) for each of the neighbours; with forms.
  template <typename Act>
  void for_each_form(const at::Tensor& y, const Call& call, const Act& act) const;
  at::Tensor plain_product(const at::Tensor& x, const Call& call) const;
  int64_t width_of_neighbour(int32_t place, const Call& call) const;
  // The bias, of the outputs that this call computes.
  at::Tensor active_bias(const Call& call) const;
  // In the form that this product reads, or in both forms where they are kept.
  kernels::Fp8Matrix quantized_weight(const Call& call, bool forward, kernels::Fp8Matrix* kept) const;
};

}  // namespace cairn::model
