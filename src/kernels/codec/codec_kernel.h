// The arguments of the codec kernels.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

enum class CudaCodec { bf16, fp8_e4m3, fp8_e5m2, int8, e3m0 };

cudaError_t launch_encode(CudaCodec codec, const float* values, int64_t count, uint8_t* codes, cudaStream_t stream);
cudaError_t launch_decode(CudaCodec codec, const uint8_t* codes, int64_t count, float* values, cudaStream_t stream);

}  // namespace cairn::kernels
