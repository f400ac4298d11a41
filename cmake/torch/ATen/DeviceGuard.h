// Found instead of libtorch's header of this name, which every operator header includes: for one overload on tensor lists that
// nobody here calls, the original brings in ATen/core/ivalue.h, and g++ then spends 0.9 s more on every file.
#pragma once
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace at {

inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor.device()) : std::nullopt;
}

inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  return tensor ? device_of(*tensor) : std::nullopt;
}

}  // namespace at
