// Masks of one bit per element: which elements of a pruned weight are kept.
#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// The bits are uint8 [rows, (columns + 7) / 8]: bit b of byte i of a row stands for column 8 i + b. Bits behind the last column are 0.
at::Tensor pack_mask(const at::Tensor& kept /*bool [rows, columns]*/);
at::Tensor unpack_mask(const at::Tensor& bits, int64_t columns);  // bool [rows, columns], on the device of the bits

// The shape of the bits for a matrix of this shape.
std::vector<int64_t> mask_shape(const std::vector<int64_t>& matrix);
// Bits that keep everything.
at::Tensor full_mask(const std::vector<int64_t>& matrix, const at::TensorOptions& options);

// What the buffer and the saved tensor of a weight's mask are called.
inline constexpr const char* kMaskSuffix = ".mask";

}  // namespace cairn::model
