// fp8 on a GPU: our kernels quantize, cuBLASLt multiplies.
#pragma once
#include "kernels/fp8.h"

namespace cairn::kernels {

// As in fp8.h. False: no kernel for these tensors; nothing was done.
bool to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& amax);
bool cross_entropy_to_fp8_on_cuda(Fp8Matrix& made, const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets,
                                  const at::Tensor& scale, const at::Tensor& amax);
// y = x w^T, codes by rows. `fast`: fast accumulation, with fewer bits inside the tensor cores; good enough for forward, not for gradients.
bool fp8_gemm_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w, const at::Tensor& w_factor,
                      const at::Tensor* onto, bool fast);

}  // namespace cairn::kernels
