// MoS: a LoRA adapter whose matrices are put together from pools that all layers share. Row j of a is pieces j * shards ... of the layer's
// index one after the other, and so is column j of b. They are made for each call and not kept: backward makes them again. The gradient of
// a pool's row is the sum over the layers that take it; each layer adds its rows, in the order of backward.
#include <utility>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "model/card.h"
#include "model/decoder/adapter.h"
#include "model/decoder/adapter_dropout.h"
#include "model/decoder/local_pieces.h"

namespace cairn::model {
namespace {

class PooledAdapter final : public LinearAdapter {
 public:
  PooledAdapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b, std::string buffer, int64_t layer)
      : of_(std::move(of)),
        a_(a),
        b_(b),
        rank_(shape.rank),
        scale_(shape.scale()),
        dropout_{of_.name, shape.dropout},
        buffer_(std::move(buffer)),
        layer_(layer) {}

  void add_output(const at::Tensor& y, const at::Tensor& x, int64_t first_row, const Call& call) const override {
    y.addmm_(narrowed(dropped(x, first_row, call), call), take_columns(whole_b(call), outputs(call)), 1, scale_);
  }

  void input_gradient(const at::Tensor& dx, const at::Tensor& dy, int64_t first_row, const Call& call) const override {
    const std::vector<mesh::Interval> columns = inputs(call);
    const at::Tensor dh = narrowed_gradient(dy, call), a = take_columns(whole_a(call), columns);
    if (!dropout_.is_on(call)) return kernels::linear_backward_input(dx, dh, a, /*accumulate=*/true);
    const at::Tensor added = at::empty({dx.size(0), dx.size(1)}, dx.options());
    kernels::linear_backward_input(added, dh, a);
    dropout_.apply(added, first_row, columns, call);
    dx.add_(added);
  }

  void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const override {
    const at::Tensor from = dropped(x, 0, call);
    add(into, b_, index(".b", call), narrowed(from, call).mul_(scale_), dy, outputs(call), of_.out);
    add(into, a_, index(".a", call), narrowed_gradient(dy, call), from, inputs(call), of_.in);
  }

  at::Tensor plain(const at::Tensor& x, const Call& call) const override {
    return at::matmul(at::matmul(x, whole_a(call).t()), whole_b(call)) * scale_;
  }

  std::vector<mesh::ParamId> parameters() const override { return {a_, b_}; }
  void describe(BlockOp& operation) const override { operation.pooled = true; }

 private:
  at::Tensor index(const char* side, const Call& call) const { return call.buffers.at(buffer_ + side).select(0, layer_); }
  at::Tensor whole_a(const Call& call) const { return call.weights.get(a_).index_select(0, index(".a", call)).view({rank_, of_.in}); }
  at::Tensor whole_b(const Call& call) const { return call.weights.get(b_).index_select(0, index(".b", call)).view({rank_, of_.out}); }

  // Where this rank's inputs and outputs lie in the whole ones.
  std::vector<mesh::Interval> side(size_t dim, const Call& call) const {
    const std::vector<int64_t> shape = of_.fan_in_fan_out ? std::vector{of_.in, of_.out} : std::vector{of_.out, of_.in};
    return local_pieces(of_.weight, shape, dim, call);
  }
  std::vector<mesh::Interval> inputs(const Call& call) const { return side(of_.fan_in_fan_out ? 0 : 1, call); }
  std::vector<mesh::Interval> outputs(const Call& call) const { return side(of_.fan_in_fan_out ? 1 : 0, call); }

  at::Tensor dropped(const at::Tensor& x, int64_t first_row, const Call& call) const {
    return dropout_.is_on(call) ? dropout_.of(x, first_row, inputs(call), call) : x;
  }
  // x a^T [rows, rank].
  at::Tensor narrowed(const at::Tensor& x, const Call& call) const {
    const at::Tensor h = at::empty({x.size(0), rank_}, x.options());
    kernels::linear(h, x, take_columns(whole_a(call), inputs(call)));
    return h;
  }
  // The gradient of it: scale dy b [rows, rank].
  at::Tensor narrowed_gradient(const at::Tensor& dy, const Call& call) const {
    const at::Tensor dh = at::empty({dy.size(0), rank_}, dy.options());
    kernels::linear(dh, dy, take_columns(whole_b(call), outputs(call)));
    return dh.mul_(scale_);
  }
  // Adds (narrow^T wide) [rank, this rank's columns], in fp32, to the rows of a pool.
  static void add(mesh::Gradients& into, mesh::ParamId pool, const at::Tensor& rows, const at::Tensor& narrow, const at::Tensor& wide,
                  const std::vector<mesh::Interval>& columns, int64_t width) {
    const auto dtype = wide.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor sum = at::empty({narrow.size(1), wide.size(1)}, wide.options().dtype(dtype));
    kernels::linear_backward_weight(sum, narrow, wide);
    into.add_rows(pool, rows, spread_columns(sum, columns, width).view({rows.size(0), -1}));
  }

  AdaptedWeight of_;
  mesh::ParamId a_, b_;
  int64_t rank_;
  double scale_;
  AdapterDropout dropout_;
  std::string buffer_;
  int64_t layer_;
};

}  // namespace

std::shared_ptr<const LinearAdapter> make_pooled_adapter(const AdapterShape& shape, AdaptedWeight of, mesh::ParamId a, mesh::ParamId b,
                                                         std::string buffer, int64_t layer) {
  return std::make_shared<PooledAdapter>(shape, std::move(of), a, b, std::move(buffer), layer);
}

}  // namespace cairn::model
