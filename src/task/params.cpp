#include "task/params.h"

#include <set>

#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"

namespace cairn::task {

Params::Params(mesh::NamedTensors all) : all_(std::move(all)) {
  std::set<std::string> names;
  for (const mesh::NamedTensor& one : all_)
    if (!names.insert(one.name).second) base::fail_input("two parameters are called \"{}\": give each a name of its own", one.name);
}

const at::Tensor& Params::operator[](std::string_view name) const {
  for (const mesh::NamedTensor& one : all_)
    if (one.name == name) return one.tensor;
  std::vector<std::string> names;
  for (const mesh::NamedTensor& one : all_) names.push_back(one.name);
  base::fail_unknown("parameter", name, names);
}

std::vector<at::Tensor> Params::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const mesh::NamedTensor& one : all_) tensors.push_back(one.tensor);
  return tensors;
}

Params Params::with(std::vector<at::Tensor> tensors) const {
  if (tensors.size() != all_.size()) base::fail_input("{} tensors for {} parameters: one for each, in their order", tensors.size(), size());
  Params other = *this;
  for (size_t i = 0; i < tensors.size(); ++i) other.all_[i].tensor = std::move(tensors[i]);
  return other;
}

Params Params::map(const std::function<at::Tensor(const at::Tensor&)>& f) const {
  Params other = *this;
  for (mesh::NamedTensor& one : other.all_) one.tensor = f(one.tensor);
  return other;
}

Params gradients(const at::Tensor& scalar, const Params& at, bool differentiable) {
  std::vector<at::Tensor> found = torch::autograd::grad({scalar}, at.tensors(), {}, /*retain_graph=*/differentiable,
                                                        /*create_graph=*/differentiable, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined()) found[i] = at::zeros_like(at.all()[i].tensor);
  return at.with(std::move(found));
}

Params add_scaled(const Params& from, const Params& along, double by) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < from.size(); ++i) tensors.push_back(from.all()[i].tensor + by * along.all()[i].tensor);
  return from.with(std::move(tensors));
}

Params repeated(const Params& params, int64_t n) {
  return params.map([n](const at::Tensor& tensor) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape.insert(shape.begin(), n);
    const at::Tensor rows = tensor.unsqueeze(0).expand(shape);
    return rows.requires_grad() ? rows : rows.detach().requires_grad_();
  });
}

Params average(std::span<const Params> each, std::span<const double> weights) {
  if (each.empty() || each.size() != weights.size())
    base::fail_input("an average of {} sets of parameters by {} weights: a weight for each, and at least one", each.size(), weights.size());
  double whole = 0;
  for (const double weight : weights) whole += weight;
  Params sum = each[0].map([](const at::Tensor& tensor) { return at::zeros_like(tensor); });
  for (size_t i = 0; i < each.size(); ++i) sum = add_scaled(sum, each[i], weights[i] / whole);
  return sum;
}

at::Tensor squares_by_row(const Params& rows) {
  at::Tensor sum;
  for (const mesh::NamedTensor& one : rows.all()) {
    const at::Tensor squares = one.tensor.flatten(1).square().sum(1);
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum;
}

Params detached(const Params& params) {
  return params.map([](const at::Tensor& tensor) { return tensor.detach().clone(); });
}

}  // namespace cairn::task
