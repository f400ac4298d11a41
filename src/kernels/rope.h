// Rotary position embedding in Hugging Face's "rotate_half" order: element i of a head is paired with element i + head_dim / 2.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// The angles of positions 0 .. length-1: position * theta^(-2i / head_dim), computed in double, then rounded.
struct RopeTable {
  at::Tensor cos;  // [length, head_dim / 2]
  at::Tensor sin;  // [length, head_dim / 2]
};
RopeTable rope_table(int64_t length, int64_t head_dim, double theta, const at::TensorOptions& options);

// Rotates x [batch, length, heads, head_dim] in place; row l by the angles of table row position + l. `inverse` rotates back,
// which is also the gradient. Outer strides are free, so x may be a slice of a fused qkv buffer; the last dim is contiguous.
// With *from, which is like x and not a part of it: x becomes *from rotated.
void rope(const at::Tensor& x, const RopeTable& table, int64_t position = 0, bool inverse = false, const at::Tensor* from = nullptr);

// The gradients of heads that lie side by side, of which queries and keys were turned: x [batch, length, all heads, head_dim], contiguous,
// becomes q and k rotated back and v as it is. None of them is a part of x; their last dim is contiguous.
struct QkvGradients {
  const at::Tensor &q, &k, &v;
};
void rope_backward(const at::Tensor& x, const QkvGradients& from, const RopeTable& table, int64_t position = 0);

namespace reference {
void rope(const at::Tensor& x, const RopeTable& table, int64_t position = 0, bool inverse = false);
}  // namespace reference

}  // namespace cairn::kernels
