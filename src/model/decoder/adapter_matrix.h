#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/gradients.h"
#include "model/call.h"
#include "model/decoder/adapter_shape.h"

namespace cairn::model {

// The module of a matrix that a training pass uses. `pass`: its random numbers (Call::random).
int64_t drawn_module(const base::Random& pass, const std::string& matrix, int64_t modules);

// A trained matrix of an adapter, w [out, in], with its bias where it has one: one parameter, or modules (MoSA, arXiv:2312.02923). Modules
// are disjoint sets of the matrix' elements that cover it, drawn once from a seed; each has a bias of its own. A training pass computes
// with one module, and only that one gets gradients. All other passes compute with all of them, merged:
//
//   w = sum_n u_n / N,   bias = sum_n bias_n / N
//
// which is the mean of what the modules compute. Module n is kept as the vector of its elements, so it is exactly zero elsewhere; which
// they are is a buffer of the model. Along tp every rank has all of it.
class AdapterMatrix {
 public:
  struct Parts {
    std::string name;  // "model.layers.0.mlp.adapter.up"
    int64_t out = 0, in = 0;
    int64_t modules = 1;
    ModuleSplit split = ModuleSplit::all;
    int64_t seed = 0;
    mesh::ParamId weight = {};               // the matrix, or the first of its modules
    std::optional<mesh::ParamId> bias = {};  // as many
  };
  explicit AdapterMatrix(Parts parts);

  const std::string& name() const { return parts_.name; }
  int64_t modules() const { return parts_.modules; }
  int64_t module_elements(int64_t module) const;  // of the matrix
  // The elements of all modules, one after the other, as places in the flattened matrix; ascending in each.
  std::vector<int64_t> module_order() const;
  void add_buffers(Buffers& into, const at::TensorOptions& options) const;

  // The matrix as this call computes with it, [out, in], and its bias [out].
  at::Tensor weight(const Call& call) const;
  at::Tensor bias(const Call& call) const;
  // Adds dout^T x to the gradient of the module that computes.
  void outer(mesh::Gradients& into, const at::Tensor& x /*[rows, in]*/, const at::Tensor& dout /*[rows, out]*/, const Call& call) const;
  // The same with a gradient of the whole matrix, fp32.
  void add(mesh::Gradients& into, const at::Tensor& gradient, const Call& call) const;
  void add_bias_gradient(mesh::Gradients& into, const at::Tensor& dout, const Call& call) const;

  std::vector<mesh::ParamId> parameters() const;

 private:
  bool is_split() const { return parts_.modules > 1; }
  mesh::ParamId module_weight(int64_t module) const { return {parts_.weight.first + static_cast<int32_t>(module)}; }
  int64_t computing(const Call& call) const;  // the module of this call; below 0: all of them
  at::Tensor places(int64_t module, const Call& call) const;

  Parts parts_;
  std::vector<int64_t> begins_;  // by module, and the end: where its elements are in module_order
};

}  // namespace cairn::model
