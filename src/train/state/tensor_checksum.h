#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::train {

// Of a tensor's bytes, wherever it lies.
uint64_t checksum_of(const at::Tensor& tensor);

}  // namespace cairn::train
