#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/gradients.h"
#include "model/call.h"
#include "model/decoder/operand.h"

namespace cairn::model {

struct BlockOp;

// A linear layer as blocks use it: y = x w^T + b. Where its weight comes from is decided here, so that blocks need not know: one
// parameter or neighbours that are multiplied as one matrix, stored [out, in] or [in, out], with or without adapters. Rows of x and y may
// lie apart.
struct Linear {
  // What an adapter adds to the outputs of one of the neighbours: scale (x a^T) b^T.
  struct LowRank {
    mesh::ParamId a = {}, b = {};  // [rank, in], [out, rank]
    int32_t place = 0;             // of the matrix it is for, among the neighbours
    double scale = 1;
  };

  mesh::ParamId weight = {};
  std::optional<mesh::ParamId> bias = {};
  bool fan_in_fan_out = false;  // the weight is stored [in, out], as GPT-2's are
  std::vector<LowRank> low_rank = {};

  // `made`, here and below: gains codes of x or dy where this layer is in eight bits, for its weight gradient; may know their largest
  // magnitude. `weight_codes` likewise gains those of the weight, for calls to come with the same weight.
  void forward(const at::Tensor& y /*[rows, out], overwritten*/, const at::Tensor& x /*[rows, in]*/, const Call& call,
               Operand* made = nullptr, kernels::Fp8Matrix* weight_codes = nullptr) const;
  // The same in two parts, for a layer whose inputs are shared out: products are summed over the ranks, the bias is added once.
  void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto = nullptr /*added to it*/,
               Operand* made = nullptr, kernels::Fp8Matrix* weight_codes = nullptr) const;
  void add_bias(const at::Tensor& y, const Call& call) const;
  void input_gradient(const at::Tensor& dx /*overwritten*/, const at::Tensor& dy, const Call& call, Operand* made = nullptr,
                      kernels::Fp8Matrix* weight_codes = nullptr) const;
  // Codes of dy beforehand, of which `input_gradient` then makes use in place of dy: so dy, where it is large, need not live until then.
  static void quantize_gradient(Operand& into, const at::Tensor& dy);
  void weight_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const;
  void product_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const;
  void bias_gradient(mesh::Gradients& into, const at::Tensor& dy) const;
  bool is_fp8(const Call& call) const;
  // The weight [out, in] where y = x w^T is all there is to it: then a kernel may take it together with what comes after.
  std::optional<at::Tensor> bare_weight(const Call& call) const;
  bool needs_values() const { return bias || !low_rank.empty(); }  // of dy for its gradients, whatever the codes
  // x [..., in]; differentiable.
  at::Tensor plain(const at::Tensor& x, const Call& call) const;
  // Likewise the codes of both sides, where it is in eight bits.
  struct Fp8Operands {
    kernels::Fp8Matrix x, w;
  };
  std::optional<Fp8Operands> fp8_operands(const at::Tensor& x, const Call& call, Operand* made) const;
  std::vector<mesh::ParamId> parameters() const;
  // Says on a card what this layer is.
  void describe(BlockOp& operation) const;
  // Widths of what is here of the weight.
  int64_t in_width(const Call& call) const;
  int64_t out_width(const Call& call) const;

 private:
  Fp8Operands quantize_operands(const at::Tensor& x, const Call& call, Operand* made, kernels::Fp8Matrix* weight_codes = nullptr) const;
  // In the form that this product reads; in both where they are kept.
  kernels::Fp8Matrix quantized_weight(const Call& call, bool forward, kernels::Fp8Matrix* kept) const;
};

}  // namespace cairn::model
