#pragma once
#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// Codes of comm/codec.h on a GPU, the same bytes as on the host: so that of numbers that live there only codes have to leave it.

// Whether the codec of this name has them here: bf16, fp8, fp8_e5m2, int8 and e3m0, in a build with CUDA.
bool has_cuda_codec(std::string_view codec);
// `values` (fp32, contiguous, on a GPU) as `bytes` codes there: as many as the codec has for so many values.
at::Tensor encode_on_cuda(std::string_view codec, const at::Tensor& values, int64_t bytes);
// And back, `count` values.
at::Tensor decode_on_cuda(std::string_view codec, const at::Tensor& codes, int64_t count);

}  // namespace cairn::kernels
