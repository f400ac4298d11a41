// Rotary position embedding in Hugging Face's "rotate_half" order: element i of a head is paired with element i + head_dim / 2.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// Cosine and sine of the angles position * theta^(-2i / head_dim) for positions 0 .. length-1, computed in double and rounded.
struct RopeTable {
  at::Tensor cos;  // [length, head_dim / 2]
  at::Tensor sin;  // [length, head_dim / 2]
};
RopeTable rope_table(int64_t length, int64_t head_dim, double theta, const at::TensorOptions& options);

// Rotates x [batch, length, heads, head_dim] in place; row l uses table row position + l. `inverse` rotates back, which is also the
// gradient. The last dim is contiguous and other strides are free, so x may be a slice of a fused qkv buffer. With `from`, a tensor of the
// same shape in other memory, x is overwritten with the rotation of *from.
void rope(const at::Tensor& x, const RopeTable& table, int64_t position = 0, bool inverse = false, const at::Tensor* from = nullptr);

// The gradient of a fused qkv buffer: overwrites x [batch, length, all heads, head_dim], contiguous, with q and k rotated back and v
// copied, side by side. None of them shares memory with x; their last dim is contiguous.
struct QkvGradients {
  const at::Tensor &q, &k, &v;
};
void rope_backward(const at::Tensor& x, const QkvGradients& from, const RopeTable& table, int64_t position = 0);

namespace reference {
void rope(const at::Tensor& x, const RopeTable& table, int64_t position = 0, bool inverse = false);
}  // namespace reference

}  // namespace cairn::kernels
