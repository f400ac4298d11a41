// A LoRA adapter whose matrices are split into modules (adapter_matrix.h): y += scale (x a^T) b^T. A matrix that is not split is a parameter
// of the layer like those of plain LoRA. The gradients are those of low_rank_adapter.cpp.
#include <utility>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/card.h"
#include "model/decoder/adapter.h"
#include "model/decoder/adapter_dropout.h"
#include "model/decoder/adapter_matrix.h"
#include "model/decoder/local_pieces.h"

namespace cairn::model {
namespace {

class ModuleAdapter final : public LinearAdapter {
 public:
  ModuleAdapter(const AdapterShape& shape, AdaptedWeight of, AdapterMatrix a, AdapterMatrix b)
      : of_(std::move(of)), a_(std::move(a)), b_(std::move(b)), rank_(shape.rank), scale_(shape.scale()), dropout_{of_.name, shape.dropout} {}

  void add_output(const at::Tensor& y, const at::Tensor& x, int64_t first_row, const Call& call) const override {
    y.addmm_(narrowed(dropped(x, first_row, call), call), own_b(call).t(), 1, scale_);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, int64_t first_row, const Call& call) const override {
    const at::Tensor dh = narrowed_gradient(dy, call), a = own_a(call);
    if (!dropout_.is_on(call)) return kernels::linear_backward_input(dx, dh, a, /*accumulate=*/true);
    const at::Tensor added = at::empty({dx.size(0), dx.size(1)}, dx.options());
    kernels::linear_backward_input(added, dh, a);
    dropout_.apply(added, first_row, inputs(call), call);
    dx.add_(added);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const at::Tensor from = dropped(x, 0, call), h = narrowed(from, call).mul_(scale_), dh = narrowed_gradient(dy, call);
    if (b_.modules() > 1)
      b_.add(into, spread_columns(product(h, dy), outputs(call), of_.out).t(), call);
    else
      b_.outer(into, h, dy, call);
    if (a_.modules() > 1)
      a_.add(into, spread_columns(product(dh, from), inputs(call), of_.in), call);
    else
      a_.outer(into, from, dh, call);
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    return at::matmul(at::matmul(x, own_a(call).t()), own_b(call).t()) * scale_;
  }

  std::vector<mesh::ParamId> parameters() const override {
    std::vector<mesh::ParamId> all = a_.parameters();
    for (const mesh::ParamId& id : b_.parameters()) all.push_back(id);
    return all;
  }
  void describe(BlockOp& operation) const override { operation.adapter_scale = scale_, operation.pooled = true; }

 private:
  // narrow^T wide [rank, this rank's columns], in fp32.
  static at::Tensor product(const at::Tensor& narrow, const at::Tensor& wide) {
    const auto dtype = wide.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor sum = at::empty({narrow.size(1), wide.size(1)}, wide.options().dtype(dtype));
    kernels::linear_backward_weight(sum, narrow, wide);
    return sum;
  }

  // Where this rank's inputs and outputs lie in the whole ones.
  std::vector<mesh::Interval> side(size_t dim, const Call& call) const {
    const std::vector<int64_t> shape = of_.fan_in_fan_out ? std::vector{of_.in, of_.out} : std::vector{of_.out, of_.in};
    return local_pieces(of_.weight, shape, dim, call);
  }
  std::vector<mesh::Interval> inputs(const Call& call) const { return side(of_.fan_in_fan_out ? 0 : 1, call); }
  std::vector<mesh::Interval> outputs(const Call& call) const { return side(of_.fan_in_fan_out ? 1 : 0, call); }

  // This rank's columns of a, and rows of b. Ranks hold modules whole.
  at::Tensor own_a(const Call& call) const { return a_.modules() > 1 ? take_columns(a_.weight(call), inputs(call)) : a_.weight(call); }
  at::Tensor own_b(const Call& call) const {
    return b_.modules() > 1 ? take_columns(b_.weight(call).t(), outputs(call)).t() : b_.weight(call);
  }

  at::Tensor dropped(const at::Tensor& x, int64_t first_row, const Call& call) const {
    return dropout_.is_on(call) ? dropout_.of(x, first_row, inputs(call), call) : x;
  }
  // x a^T [rows, rank].
  at::Tensor narrowed(const at::Tensor& x, const Call& call) const {
    const at::Tensor h = at::empty({x.size(0), rank_}, x.options());
    kernels::linear(h, x, own_a(call));
    return h;
  }
  // The gradient of it: scale dy b [rows, rank].
  at::Tensor narrowed_gradient(const at::Tensor& dy, const Call& call) const {
    const at::Tensor dh = at::empty({dy.size(0), rank_}, dy.options());
    kernels::linear_backward_input(dh, dy, own_b(call).contiguous());
    return dh.mul_(scale_);
  }

  AdaptedWeight of_;
  AdapterMatrix a_, b_;
  int64_t rank_;
  double scale_;
  AdapterDropout dropout_;
};

}  // namespace

std::shared_ptr<const LinearAdapter> make_module_adapter(const AdapterShape& shape, AdaptedWeight of, AdapterMatrix a, AdapterMatrix b) {
  return std::make_shared<ModuleAdapter>(shape, std::move(of), std::move(a), std::move(b));
}

}  // namespace cairn::model
