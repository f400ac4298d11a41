// What the host wrappers of CUDA kernels share: which tensors kernels accept, and how a launch is checked.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

using CudaDeviceGuard = c10::cuda::CUDAGuard;  // selects the device of launches in its scope

inline cudaStream_t stream_of(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()); }

inline bool is_on_gpu(const at::Tensor& x) { return x.is_cuda(); }

// True if all tensors are contiguous, on one GPU, and of x's dtype, which is fp32 or bf16.
template <class... More>
bool all_kernel_inputs(const at::Tensor& x, const More&... more) {
  return is_on_gpu(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.is_contiguous() &&
         ((more.device() == x.device() && more.scalar_type() == x.scalar_type() && more.is_contiguous()) && ...);
}

// True if all tensors in `more` are contiguous fp32 on x's device: row statistics, losses, sums.
template <class... More>
bool all_fp32(const at::Tensor& x, const More&... more) {
  return ((more.device() == x.device() && more.scalar_type() == at::kFloat && more.is_contiguous()) && ...);
}

inline Elements elements_of(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 ? Elements::bf16 : Elements::fp32; }

// Allocates *amax for a result like x (device::Amax, cuda/pack.h), where it is wanted and x is bf16; else null.
inline unsigned* amax_words(at::Tensor* amax, const at::Tensor& x) {
  if (amax == nullptr || x.scalar_type() != at::kBFloat16) return nullptr;
  *amax = at::zeros({kAmaxWords}, x.options().dtype(at::kInt));
  return reinterpret_cast<unsigned*>(amax->mutable_data_ptr<int>());
}

inline void check_launch(cudaError_t status, const char* what) {
  CAIRN_CHECK(status == cudaSuccess, "the {} kernel did not start: {}", what, cudaGetErrorString(status));
}

}  // namespace cairn::kernels
