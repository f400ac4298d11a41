// Products on a Hopper GPU that go on working on their results.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::kernels {

struct Turned;
struct Fp8Matrix;

// Whether this is a GPU that they are for, and whether they were built (for sm_90a).
bool is_hopper(const at::Device& device);
bool has_hopper_products();

// Results that are cut into fewer tiles than a GPU works on at a time are left to those who cut sums as well.
enum class Fewest { worth_it, any };

// As in fused_product.h. False: not for it, and nothing was done.
bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w,
                           Fewest tiles = Fewest::worth_it);
bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* largest,
                           Fewest tiles = Fewest::worth_it);
bool linear_input_swiglu_on_cuda(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                                 const at::Tensor& gate_up, Fewest tiles = Fewest::worth_it);
bool linear_rope_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const Turned& turned,
                         Fewest tiles = Fewest::worth_it);
bool linear_rope_on_cuda(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const Turned& turned,
                         Fewest tiles = Fewest::worth_it);

}  // namespace cairn::kernels
