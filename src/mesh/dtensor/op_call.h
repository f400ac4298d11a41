// One call of an ATen operation on DTensors, and what its rules need.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "mesh/dtensor/impl.h"
#include "mesh/dtensor/index_rules.h"

namespace cairn::mesh::dispatch {

using Values = std::vector<c10::IValue>;

// One call of an operation.
struct OpCall {
  const c10::OperatorHandle& op;
  std::string name;  // "mm", "sum.dim_IntList"
  Values arguments;
  std::shared_ptr<DTensorAxis> axis = {};

  int ranks() const { return axis->size(); }
  const at::Tensor& tensor(size_t i) const { return arguments[i].toTensor(); }
};

inline Placement::How how_of(const at::Tensor& tensor) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  return impl ? impl->how() : Placement::How(Replicate{});
}

inline at::Tensor local_of(const at::Tensor& tensor) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

inline PlacedOperand operand_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), how_of(tensor), static_cast<int64_t>(tensor.dtype().itemsize())};
}

inline at::Tensor made(const OpCall& call, const at::Tensor& local, const Placement::How& how, std::vector<int64_t> shape) {
  return at::detail::make_tensor<DTensorImpl>(call.axis, local, how, shape);
}

inline at::Tensor brought(const OpCall& call, const at::Tensor& tensor, const Placement::How& how) {
  if (!tensor.defined()) return tensor;
  return call.axis->redistribute(local_of(tensor), how_of(tensor), how, tensor.sizes().vec(), call.name);
}

inline Values run(const OpCall& call, Values arguments) {
  call.op.callBoxed(&arguments);
  return arguments;
}

inline at::Tensor run_for_tensor(const OpCall& call, Values arguments) { return run(call, std::move(arguments)).front().toTensor(); }

// The result of an operation that rearranges a tensor, or needs nothing of it but its options (rearrange.cpp); none: no rule applies.
std::optional<at::Tensor> rearranged(const OpCall& call);

}  // namespace cairn::mesh::dispatch
