// LoRA (arXiv:2106.09685): y += scale (x a^T) b^T with a [rank, in], b [out, rank]. With h = x a^T:
//   dx += scale (dy b) a,   db = scale dy^T h,   da = scale (dy b)^T x
// With dropout x and the addition to dx are masked.
#include <utility>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/card.h"
#include "model/decoder/adapter.h"
#include "model/decoder/adapter_dropout.h"
#include "model/decoder/local_pieces.h"

namespace cairn::model {
namespace {

class LowRankAdapter final : public LinearAdapter {
 public:
  LowRankAdapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b)
      : of_(std::move(of)), a_(a), b_(b), rank_(shape.rank), scale_(shape.scale()), dropout_{of_.name, shape.dropout} {}

  void add_output(const at::Tensor& y, const at::Tensor& x, int64_t first_row, const Call& call) const override {
    y.addmm_(narrowed(dropped(x, first_row, call), call), call.weights.get(b_).t(), 1, scale_);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, int64_t first_row, const Call& call) const override {
    const at::Tensor dh = narrowed_gradient(dy, call), a = call.weights.get(a_);
    if (!dropout_.is_on(call)) return kernels::linear_backward_input(dx, dh, a, /*accumulate=*/true);
    const at::Tensor added = at::empty({dx.size(0), dx.size(1)}, dx.options());
    kernels::linear_backward_input(added, dh, a);
    dropout_.apply(added, first_row, columns(call), call);
    dx.add_(added);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const at::Tensor from = dropped(x, 0, call);
    into.outer(b_, narrowed(from, call).mul_(scale_), dy);
    into.outer(a_, from, narrowed_gradient(dy, call));
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    return at::matmul(at::matmul(x, call.weights.get(a_).t()), call.weights.get(b_).t()) * scale_;
  }

  std::vector<mesh::ParamId> parameters() const override { return {a_, b_}; }
  void describe(BlockOp& operation) const override { operation.adapter_scale = scale_; }

 private:
  // x a^T [rows, rank].
  at::Tensor narrowed(const at::Tensor& x, const Call& call) const {
    const at::Tensor a = call.weights.get(a_), h = at::empty({x.size(0), a.size(0)}, x.options());
    kernels::linear(h, x, a);
    return h;
  }
  // The gradient of it: scale dy b [rows, rank].
  at::Tensor narrowed_gradient(const at::Tensor& dy, const Call& call) const {
    const at::Tensor b = call.weights.get(b_), dh = at::empty({dy.size(0), b.size(1)}, dy.options());
    kernels::linear_backward_input(dh, dy, b);
    return dh.mul_(scale_);
  }
  std::vector<mesh::Interval> columns(const Call& call) const { return local_pieces(a_, {rank_, of_.in}, 1, call); }
  at::Tensor dropped(const at::Tensor& x, int64_t first_row, const Call& call) const {
    return dropout_.is_on(call) ? dropout_.of(x, first_row, columns(call), call) : x;
  }

  AdaptedWeight of_;
  mesh::ParamId a_, b_;
  int64_t rank_;
  double scale_;
  AdapterDropout dropout_;
};

}  // namespace

std::shared_ptr<const LinearAdapter> make_low_rank_adapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b) {
  return std::make_shared<LowRankAdapter>(shape, std::move(of), a, b);
}

}  // namespace cairn::model
