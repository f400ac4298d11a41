#include "model/decoder/adapter_matrix.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random/permutation.h"
#include "kernels/aten.h"
#include "kernels/gemm.h"

namespace cairn::model {

int64_t drawn_module(const base::Random& pass, const std::string& matrix, int64_t modules) {
  return static_cast<int64_t>(pass.for_purpose("adapter.module").for_name(matrix).below(0, static_cast<uint64_t>(modules)));
}

namespace {

// Groups of elements that are split into modules one by one: all of the matrix, each row, or each column.
struct SplitGroups {
  int64_t count = 1, elements = 0, first_stride = 0, stride = 1;
};

SplitGroups groups_of(const AdapterMatrix::Parts& p) {
  switch (p.split) {
    case ModuleSplit::row:
      return {p.out, p.in, p.in, 1};
    case ModuleSplit::column:
      return {p.in, p.out, 1, p.in};
    case ModuleSplit::all:
      break;
  }
  return {1, p.out * p.in, 0, 1};
}

// The ranks [begin, end) in a random order of a group's elements that belong to a module.
int64_t first_rank(const SplitGroups& groups, int64_t module, int64_t modules) { return groups.elements * module / modules; }

}  // namespace

AdapterMatrix::AdapterMatrix(Parts parts) : parts_(std::move(parts)), begins_{0} {
  const SplitGroups groups = groups_of(parts_);
  for (int64_t n = 0; n < parts_.modules; ++n)
    begins_.push_back(begins_.back() + groups.count * (first_rank(groups, n + 1, parts_.modules) - first_rank(groups, n, parts_.modules)));
  if (parts_.modules > groups.elements)
    base::fail_input("model.adapter.modules = {}: {} is {} x {}, and split over {} only {} elements are there to share. Use fewer modules.",
                     parts_.modules, parts_.name, parts_.out, parts_.in, base::enum_name(kModuleSplitNames, parts_.split), groups.elements);
}

int64_t AdapterMatrix::module_elements(int64_t module) const {
  return begins_[static_cast<size_t>(module) + 1] - begins_[static_cast<size_t>(module)];
}

std::vector<int64_t> AdapterMatrix::module_order() const {
  const SplitGroups groups = groups_of(parts_);
  const base::Random random = base::Random(static_cast<uint64_t>(parts_.seed)).for_purpose("adapter.modules").for_name(parts_.name);
  std::vector<int64_t> order(static_cast<size_t>(begins_.back()));
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  for (int64_t g = 0; g < groups.count; ++g) {
    const base::Permutation ranked(static_cast<uint64_t>(groups.elements), random.for_index(static_cast<uint64_t>(g)));
    for (int64_t n = 0; n < parts_.modules; ++n)
      for (int64_t rank = first_rank(groups, n, parts_.modules); rank < first_rank(groups, n + 1, parts_.modules); ++rank)
        order[static_cast<size_t>(next[static_cast<size_t>(n)]++)] =
            g * groups.first_stride + static_cast<int64_t>(ranked.at(static_cast<uint64_t>(rank))) * groups.stride;
  }
  for (size_t n = 0; n + 1 < begins_.size(); ++n) std::sort(order.begin() + begins_[n], order.begin() + begins_[n + 1]);
  return order;
}

void AdapterMatrix::add_buffers(Buffers& into, const at::TensorOptions& options) const {
  if (!is_split()) return;
  const std::vector<int64_t> order = module_order();
  const at::Tensor places = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), places.mutable_data_ptr<int64_t>());
  into[parts_.name + ".modules"] = places.to(options.device());
}

int64_t AdapterMatrix::computing(const Call& call) const {
  const int64_t asked = call.options.module;
  if (asked == kModulesByPass) return call.trains() ? drawn_module(call.random, parts_.name, parts_.modules) : kModulesByPass;
  CAIRN_CHECK(asked < parts_.modules, "module {} of {}, which has {}", asked, parts_.name, parts_.modules);
  return asked;
}

at::Tensor AdapterMatrix::places(int64_t module, const Call& call) const {
  return call.buffers.at(parts_.name + ".modules").narrow(0, begins_[static_cast<size_t>(module)], module_elements(module));
}

at::Tensor AdapterMatrix::weight(const Call& call) const {
  if (!is_split()) return call.weights.get(parts_.weight);
  const int64_t one = computing(call);
  at::Tensor flat;
  for (int64_t n = one < 0 ? 0 : one; n < (one < 0 ? parts_.modules : one + 1); ++n) {
    const at::Tensor elements = call.weights.get(module_weight(n)).view({-1});
    if (!flat.defined()) flat = at::zeros({parts_.out * parts_.in}, elements.options());
    flat.index_copy_(0, places(n, call), elements);
  }
  if (one == kModulesByPass) flat.mul_(1.0 / static_cast<double>(parts_.modules));
  return flat.view({parts_.out, parts_.in});
}

at::Tensor AdapterMatrix::bias(const Call& call) const {
  if (!is_split()) return call.weights.get(*parts_.bias);
  const int64_t one = computing(call);
  const auto of = [&](int64_t module) { return call.weights.get({parts_.bias->first + static_cast<int32_t>(module)}); };
  if (one >= 0) return of(one);
  at::Tensor sum = of(0).clone();
  for (int64_t n = 1; n < parts_.modules; ++n) sum.add_(of(n));
  return one == kModulesByPass ? sum.mul_(1.0 / static_cast<double>(parts_.modules)) : sum;
}

void AdapterMatrix::outer(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dout, const Call& call) const {
  if (!is_split()) return into.outer(parts_.weight, x, dout);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor whole = at::empty({parts_.out, parts_.in}, x.options().dtype(dtype));
  kernels::linear_backward_weight(whole, dout, x);
  add(into, whole, call);
}

void AdapterMatrix::add(mesh::Gradients& into, const at::Tensor& gradient, const Call& call) const {
  if (!is_split()) return into.add(parts_.weight, gradient);
  const int64_t one = computing(call);
  CAIRN_CHECK(one >= 0, "{}: a gradient of merged modules", parts_.name);
  into.add(module_weight(one), gradient.reshape({-1}).index_select(0, places(one, call)).view({-1, 1}));
}

void AdapterMatrix::add_bias_gradient(mesh::Gradients& into, const at::Tensor& dout, const Call& call) const {
  if (!parts_.bias) return;
  into.add_sum(is_split() ? mesh::ParamId{parts_.bias->first + static_cast<int32_t>(computing(call))} : *parts_.bias, dout);
}

std::vector<mesh::ParamId> AdapterMatrix::parameters() const {
  std::vector<mesh::ParamId> all;
  for (int64_t n = 0; n < parts_.modules; ++n) all.push_back(module_weight(n));
  for (int64_t n = 0; parts_.bias && n < parts_.modules; ++n) all.push_back({parts_.bias->first + static_cast<int32_t>(n)});
  return all;
}

}  // namespace cairn::model
