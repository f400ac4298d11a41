// x + down(silu(gate(norm(x))) * up(norm(x))) (SwiGLU), or x + down(gelu(up(norm(x)))), hand-written. The activation is recomputed in the
// backward pass unless fp8 has kept its codes.

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "kernels/aten.h"
#include "kernels/fused_gemm.h"
#include "kernels/swiglu.h"
#include "model/decoder/blocks.h"
#include "model/decoder/plain_ops.h"
#include "model/decoder/residual_stream.h"

namespace cairn::model {
namespace {

class MlpBlock final : public Block {
 public:
  MlpBlock(const DecoderShape& shape, BlockIo io, MlpParts parts)
      : shape_(shape), parts_(std::move(parts)), branch_(std::move(io), parts_.norm, shape.embed, shape.dropout) {
    const double embed = static_cast<double>(shape.embed), mlp = static_cast<double>(shape.mlp);
    const double widened = parts_.gated ? 2 * mlp : mlp;
    BlockOp up{.name = parts_.gated ? "gate_up" : "up",
               .axes = {"mlp"},
               .flops_per_token = 2 * embed * widened,
               .saved_elements_per_token = widened};
    parts_.up.describe(up);
    BlockOp down{.name = "down", .axes = {"embed"}, .flops_per_token = 2 * embed * mlp};
    parts_.down.describe(down);
    card_ = {.operations = {std::move(up),
                            {.name = parts_.gated ? "swiglu" : "gelu",
                             .kind = parts_.gated ? BlockOp::Kind::multiply : BlockOp::Kind::elementwise,
                             .axes = {"mlp"},
                             .flops_per_token = 5 * mlp},
                            std::move(down)}};
    branch_.describe(card_);
    card_.sliceable = true;
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    at::Tensor up, active;
    Operand normed, activated;
    // The GEMM and SwiGLU are one kernel where nothing comes in between.
    bool activates = false;
    at::Tensor* const notes = keep && parts_.down.is_fp8(call) ? &activated.amax : nullptr;
    const std::optional<at::Tensor> fused = parts_.gated && !parts_.down.is_fp8(call) ? parts_.up.bare_weight(call) : std::nullopt;
    const ResidualBranch::In in = branch_.begin_forward(
        values, keep, call,
        [&](const at::Tensor& all, int64_t begin, int64_t count) {
          const at::Tensor from = all.narrow(0, begin, count);
          if (!up.defined()) up = at::empty({all.size(0), parts_.up.out_width(call)}, all.options());
          if (parts_.gated && !active.defined()) active = at::empty({up.size(0), up.size(1) / 2}, up.options());
          const bool whole = count == all.size(0);
          if (fused) return kernels::linear_swiglu(up.narrow(0, begin, count), active.narrow(0, begin, count), from, *fused);
          if (parts_.gated && whole)
            if (const std::optional<Linear::Fp8Operands> quantized = parts_.up.fp8_operands(from, call, keep ? &normed : nullptr)) {
              activates = true;
              return kernels::linear_swiglu(up, active, quantized->x, quantized->w, notes);
            }
          parts_.up.forward(up.narrow(0, begin, count), from, call, keep && whole ? &normed : nullptr, nullptr, begin);
        },
        parts_.up.is_fp8(call) ? &normed : nullptr);
    progress_messages(call);
    if (!parts_.gated) active = at::gelu(up, form());
    if (parts_.gated && !fused && !activates) kernels::swiglu(active, up, notes);
    branch_.end_forward(values, in, active, parts_.down, call, keep ? &activated : nullptr);
    if (!keep) return;
    keep->put("up", up);
    if (normed.codes.defined()) normed.save(*keep, "in", in.rows);
    if (activated.codes.defined()) activated.save(*keep, "active", active);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor up = saved.take("up");
    const bool again = !saved.has("active.codes");  // `active` is recomputed
    Operand dout, dwidened;
    // Buffers are reused: `active` first holds its gradient, and `up` is overwritten by its gradient.
    at::Tensor active = at::empty({up.size(0), parts_.gated ? up.size(1) / 2 : up.size(1)}, up.options()), dup = up;
    const std::optional<at::Tensor> fused = parts_.gated && again && !parts_.up.is_fp8(call) ? parts_.down.bare_weight(call) : std::nullopt;
    const ResidualBranch::Back back = branch_.begin_backward(
        gradients, saved, call,
        [&](const at::Tensor& all, int64_t begin, int64_t count) {
          const at::Tensor from = all.narrow(0, begin, count), into = active.narrow(0, begin, count), widened = up.narrow(0, begin, count);
          if (fused) return kernels::linear_swiglu_backward(widened, into, from, *fused, widened);
          parts_.down.input_gradient(into, from, call, count == all.size(0) ? &dout : nullptr, nullptr, begin);
        },
        &dout);
    progress_messages(call);
    if (parts_.gated && !fused) {
      kernels::swiglu_backward(up, active, up, again ? &active : nullptr, parts_.up.is_fp8(call) ? &dwidened.amax : nullptr);
    } else if (!parts_.gated) {
      dup = at::gelu_backward(active, up, form());
      if (again) active = at::gelu(up, form());
    }
    if (again) saved.put("active", active);
    const at::Tensor din = at::empty_like(back.dout);
    branch_.end_backward(
        gradients, saved, back, din,
        [&](const at::Tensor& sums, int64_t begin, int64_t count) {
          parts_.up.input_gradient(sums.narrow(0, begin, count), dup.narrow(0, begin, count), call,
                                   count == dup.size(0) ? &dwidened : nullptr, nullptr, begin);
        },
        call);
    dout.save(saved, "dout", back.dout);
    dwidened.save(saved, "dup", dup, parts_.up.needs_values());
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    parts_.down.product_gradient(into, Operand::take(saved, "active"), Operand::take(saved, "dout"), call);
    progress_messages(call);
    parts_.up.weight_gradient(into, Operand::take(saved, "in"), Operand::take(saved, "dup"), call);
    branch_.weight_gradients(saved, into, parts_.down, call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor up = parts_.up.plain(branch_.plain_in(values, call), call);
    const at::Tensor active = parts_.gated ? at::silu(up.narrow(-1, 0, up.size(-1) / 2)) * up.narrow(-1, up.size(-1) / 2, up.size(-1) / 2)
                              : parts_.exact_gelu ? at::gelu(up)
                                                  : plain_gelu(up);
    branch_.plain_out(values, parts_.down.plain(active, call));
  }

 private:
  const char* form() const { return parts_.exact_gelu ? "none" : "tanh"; }

  DecoderShape shape_;
  MlpParts parts_;
  ResidualBranch branch_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_mlp_block(const DecoderShape& shape, BlockIo io, MlpParts parts) {
  return std::make_unique<MlpBlock>(shape, std::move(io), std::move(parts));
}

}  // namespace cairn::model
