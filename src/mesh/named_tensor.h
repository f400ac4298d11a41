#pragma once
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::mesh {

// A tensor under the logical name by which snapshots, sync rules and ledgers know it. Copies share the storage.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

}  // namespace cairn::mesh
