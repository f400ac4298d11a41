#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sync/islands/compressor.h"

namespace cairn::sync {

// A wire's bytes of a tensor (fp32, one dim), wherever it is, with so many bytes of room before them: on a GPU the codes are made there,
// where it has the codec, and only they leave it. `into` may give memory for them.
std::vector<std::byte> encode(const Compressor& compressor, const Compressor::Slice& slice, const at::Tensor& values,
                              size_t header_bytes = 0, std::vector<std::byte> into = {});
// And back, on this device. Undefined: these bytes are no code of so many values.
at::Tensor decode(const Compressor& compressor, const Compressor::Slice& slice, std::span<const std::byte> bytes, int64_t count,
                  const at::Device& device);

}  // namespace cairn::sync
