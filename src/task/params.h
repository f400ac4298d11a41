// Parameters as the three functions see them: tensors by name, and the few things that methods do with all of them at once.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::task {

// Values of parameters (or of anything that has one tensor for each: gradients, steps) by name, in a fixed order. Copies share tensors.
class Params {
 public:
  Params() = default;
  Params(mesh::NamedTensors all);  // NOLINT: a list of named tensors is one. Refuses a name that comes twice.

  const at::Tensor& operator[](std::string_view name) const;  // an unknown name is refused, and the nearest named
  const mesh::NamedTensors& all() const { return all_; }
  size_t size() const { return all_.size(); }
  std::vector<at::Tensor> tensors() const;

  Params with(std::vector<at::Tensor> tensors) const;  // other tensors under the same names, in the same order
  Params map(const std::function<at::Tensor(const at::Tensor&)>& f) const;

 private:
  mesh::NamedTensors all_;
};

// The derivatives of a scalar with respect to each; zero where it does not depend on one. `differentiable`: they may be differentiated
// again, as methods do that learn through steps of learning.
Params gradients(const at::Tensor& scalar, const Params& at, bool differentiable = false);

// from + by * along, one by one: a step of gradient descent is add_scaled(params, gradients, -rate).
Params add_scaled(const Params& from, const Params& along, double by);

// n copies of each along a new first dim, of which gradients can be taken: those are then apart for each example, or each task.
Params repeated(const Params& params, int64_t n);

// sum_i weights[i] * each[i] / sum_i weights[i].
Params average(std::span<const Params> each, std::span<const double> weights);

// All squares of row i summed over all parameters: [n].
at::Tensor squares_by_row(const Params& rows);

// Copies that share nothing with what they were made from, and carry no graph.
Params detached(const Params& params);

}  // namespace cairn::task
