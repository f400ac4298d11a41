#include "train/state/finite.h"

#include <algorithm>
#include <vector>

#include "kernels/aten.h"

namespace cairn::train {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;  // bounds the memory of intermediate results

// One bool on the tensor's device.
at::Tensor finite(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().reshape({-1});
  at::Tensor all = at::ones({}, flat.options().dtype(at::kBool));
  for (int64_t first = 0; first < flat.size(0); first += kElementsAtOnce)
    all = all.logical_and(at::isfinite(flat.narrow(0, first, std::min(kElementsAtOnce, flat.size(0) - first))).all());
  return all;
}

}  // namespace

std::string first_not_finite(const mesh::NamedTensors& tensors, mesh::TensorSwapper* swapper) {
  std::vector<at::Tensor> found;
  std::vector<size_t> of;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].tensor.is_floating_point()) continue;
    const auto there = mesh::hold(swapper, tensors[i].tensor, mesh::TensorSwapper::Access::read);
    found.push_back(finite(tensors[i].tensor));
    of.push_back(i);
  }
  if (found.empty()) return {};
  const at::Tensor here = at::stack(found).cpu();
  for (size_t i = 0; i < of.size(); ++i)
    if (!here.const_data_ptr<bool>()[i]) return tensors[of[i]].name;
  return {};
}

}  // namespace cairn::train
