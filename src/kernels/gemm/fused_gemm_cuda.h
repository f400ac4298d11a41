// GEMMs with fused epilogues on a Hopper GPU.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::kernels {

struct RotatedHeads;
struct Fp8Matrix;

// Whether this is a Hopper GPU, and whether the kernels were built (for sm_90a).
bool is_hopper(const at::Device& device);
bool has_hopper_gemms();

// worth_it: only results with at least one tile per multiprocessor; smaller ones are left to split-K GEMMs of cuBLASLt. any: for tests.
enum class MinTiles { worth_it, any };

// As in fused_gemm.h. False: no kernel for these tensors; nothing was done.
bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w,
                           MinTiles tiles = MinTiles::worth_it);
bool linear_swiglu_on_cuda(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* amax,
                           MinTiles tiles = MinTiles::worth_it);
bool linear_swiglu_backward_on_cuda(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                                    const at::Tensor& gate_up, MinTiles tiles = MinTiles::worth_it);
bool linear_rope_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RotatedHeads& rotated,
                         MinTiles tiles = MinTiles::worth_it);
bool linear_rope_on_cuda(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const RotatedHeads& rotated,
                         MinTiles tiles = MinTiles::worth_it);

}  // namespace cairn::kernels
