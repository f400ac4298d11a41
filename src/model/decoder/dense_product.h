// The products of a linear layer with a weight at hand, stored [out, in] or, with fan_in_fan_out, [in, out].
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::model {

// y = x w^T, or y = *onto + x w^T; y may be *onto.
void dense_product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, bool fan_in_fan_out, const at::Tensor* onto = nullptr);
// dx = dy w, or dx += dy w.
void dense_input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool fan_in_fan_out, bool accumulate = false);
// dy^T x in the layout of the weight, in fp32 or the precision of doubles.
at::Tensor dense_weight_gradient(const at::Tensor& x, const at::Tensor& dy, bool fan_in_fan_out);

}  // namespace cairn::model
