// Parameters of a task: tensors by name, and operations on all of them at once.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::task {

// Tensors by name in a fixed order: parameters, or anything with one tensor per parameter (gradients, updates). Copies share tensors.
class Params {
 public:
  Params() = default;
  Params(mesh::NamedTensors all);  // NOLINT: a list of named tensors is one. Refuses a name that comes twice.

  const at::Tensor& operator[](std::string_view name) const;  // refuses an unknown name and suggests the nearest
  const mesh::NamedTensors& all() const { return all_; }
  size_t size() const { return all_.size(); }
  std::vector<at::Tensor> tensors() const;

  Params with(std::vector<at::Tensor> tensors) const;  // other tensors under the same names, in the same order
  Params map(const std::function<at::Tensor(const at::Tensor&)>& f) const;

 private:
  mesh::NamedTensors all_;
};

// The gradients of a scalar; zero for parameters that it does not depend on. `differentiable`: they can be differentiated again
// (create_graph), as meta-learning needs.
Params gradients(const at::Tensor& scalar, const Params& at, bool differentiable = false);

// from + by * along, elementwise. A step of gradient descent is add_scaled(params, gradients, -rate).
Params add_scaled(const Params& from, const Params& along, double by);

// n copies of each along a new first dim, as autograd leaves. Their gradients are then separate per example or per task.
Params repeated(const Params& params, int64_t n);

// sum_i weights[i] * each[i] / sum_i weights[i].
Params average(std::span<const Params> each, std::span<const double> weights);

// The sum of squares of row i over all parameters: [n].
at::Tensor squares_by_row(const Params& rows);

// Deep copies without an autograd graph.
Params detached(const Params& params);

}  // namespace cairn::task
