#pragma once
#include <cstdint>

namespace at {
class Tensor;
}

namespace cairn::kernels {
class RowGroups;
struct Fp8Matrix;
}  // namespace cairn::kernels

namespace cairn::mesh {

// A parameter by its index in the model's list. `count` > 1 names neighbours in one buffer (query, key and value projections), which
// kernels treat as one taller matrix.
struct ParamId {
  int32_t first = 0;
  int32_t count = 1;
  bool operator==(const ParamId&) const = default;
};

// A sink for weight gradients, in place of autograd's `.grad`. Every call is one contribution to a parameter's gradient. A sink may sum,
// weigh, project or keep samples apart, and it knows when a parameter is complete. Calls come from the thread that runs the pass. The
// caller may reuse the tensors as soon as a call returns.
class Gradients {
 public:
  virtual ~Gradients() = default;
  // The weight gradient of y = in w^T, which is dout^T in. The sink computes the product, straight into its own buffer where it can.
  virtual void outer(ParamId id, const at::Tensor& in /*[rows, in]*/, const at::Tensor& dout /*[rows, out]*/) = 0;
  // The same from fp8 matrices, of which it reads the columns. By default it converts to bf16 and calls outer.
  virtual void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout);
  // The weight gradients of a grouped product, one contribution to stacked weights [groups, out, in]: group g receives dout_g^T in_g of its
  // own rows. By default it computes them in fp32 and calls add.
  virtual void outer_grouped(ParamId id, const at::Tensor& in /*[rows, in]*/, const at::Tensor& dout /*[rows, out]*/,
                             const kernels::RowGroups& groups);
  // A gradient of the parameter's shape.
  virtual void add(ParamId id, const at::Tensor& gradient) = 0;
  // A gradient that is the sum of its rows, one for each row of the pass: of a bias. By default it sums in fp32 and calls add.
  virtual void add_sum(ParamId id, const at::Tensor& rows /*[rows, out]*/);
  // The gradient of an embedding lookup: row rows[i] of the table receives values[i].
  virtual void add_rows(ParamId id, const at::Tensor& rows /*[n] int64*/, const at::Tensor& values /*[n, embed]*/) = 0;
  // Whether contributions to any of these parameters are kept: false where none is trained. Then its gradient need not be computed.
  virtual bool wants(ParamId /*id*/) const { return true; }
  // Whether contributions are summed in fp32 or more. If not, each one is rounded; a contribution in parts should be summed beforehand.
  virtual bool accumulates_in_fp32(ParamId /*id*/) const { return true; }
  // Announces that this pass brings so many contributions beyond the parameter's uses, because one of them comes in parts.
  virtual void expect_more(ParamId id, int64_t contributions) = 0;
  // Stands for the contribution of a pass that has none (no samples on this rank), at the point where others contribute.
  virtual void skip(ParamId /*id*/) {}
  // From now on gradients of these parameters that are complete wait for `reduce`, which starts their reductions over ranks.
  virtual void hold(ParamId /*id*/) {}
  virtual void reduce(ParamId /*id*/) {}
  // The pass is over. Parameters without a contribution have no gradient in it.
  virtual void end_pass() {}
};

}  // namespace cairn::mesh
