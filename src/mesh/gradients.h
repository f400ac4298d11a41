#pragma once
#include <cstdint>

namespace at {
class Tensor;
}

namespace cairn::kernels {
struct Fp8Matrix;
}

namespace cairn::mesh {

// One parameter of a model by its place in the model's list; `count` > 1 names several that lie next to each other in one
// buffer (query, key and value projections), which kernels treat as one taller matrix.
struct ParamId {
  int32_t first = 0;
  int32_t count = 1;
  bool operator==(const ParamId&) const = default;
};

// Where weight gradients go: a sink, never `.grad`. Every call is one contribution; a sink may sum, weigh, project or keep
// samples apart. Tensors handed in may be reused by the caller as soon as the call returns.
class Gradients {
 public:
  virtual ~Gradients() = default;
  // The weight gradient of a product y = in w^T: dout^T in, computed where the sink wants it.
  virtual void outer(ParamId id, const at::Tensor& in /*[rows, in]*/, const at::Tensor& dout /*[rows, out]*/) = 0;
  // The same of matrices in eight bits, by columns.
  virtual void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout);
  virtual void add(ParamId id, const at::Tensor& gradient /*the parameter's shape*/) = 0;
  // The gradient of a table lookup: row `rows[i]` of the table receives values[i].
  virtual void add_rows(ParamId id, const at::Tensor& rows /*[n] int64*/, const at::Tensor& values /*[n, embed]*/) = 0;
  // Whether contributions add up in fp32 or more. Else each is rounded to less, and one that comes in parts is better summed up before.
  virtual bool accumulates_in_fp32(ParamId /*id*/) const { return true; }
  // In this pass so many more contributions than the parameter has uses: one of them comes in parts.
  virtual void expect_more(ParamId id, int64_t contributions) = 0;
  // A pass that has nothing to give (no samples here) comes by, where others give theirs.
  virtual void skip(ParamId /*id*/) {}
  // A pass is over: what it did not reach has no gradient in it.
  virtual void end_pass() {}
};

}  // namespace cairn::mesh
