#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::train {

// The checksum of a tensor's bytes, on any device. Waits for the device.
uint64_t checksum_of(const at::Tensor& tensor);

}  // namespace cairn::train
