#pragma once
#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// The codecs of comm/codec.h on a GPU, with the same bytes as on the host. Values on a GPU leave it encoded.

// Whether a GPU kernel exists for the codec: bf16, fp8, fp8_e5m2, int8 and e3m0, in a build with CUDA.
bool has_cuda_codec(std::string_view codec);
// Encodes `values` (fp32, contiguous, on a GPU) into `bytes` bytes on the same GPU, as many as the codec needs for them.
at::Tensor encode_on_cuda(std::string_view codec, const at::Tensor& values, int64_t bytes);
// The inverse, for `count` values.
at::Tensor decode_on_cuda(std::string_view codec, const at::Tensor& codes, int64_t count);

}  // namespace cairn::kernels
