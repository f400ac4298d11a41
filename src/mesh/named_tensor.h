#pragma once
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::mesh {

// A tensor with the logical name that snapshots, sync rules and ledgers use. Copies share the storage.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

}  // namespace cairn::mesh
