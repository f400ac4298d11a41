// Codecs on a GPU: from tensors to pointers.
#include "kernels/codec.h"

#include <map>
#include <string>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/codec/codec_kernel.h"

namespace cairn::kernels {
namespace {

const std::map<std::string, CudaCodec, std::less<>>& cuda_codecs() {
  static const std::map<std::string, CudaCodec, std::less<>> all{{"bf16", CudaCodec::bf16},
                                                                 {"fp8", CudaCodec::fp8_e4m3},
                                                                 {"fp8_e5m2", CudaCodec::fp8_e5m2},
                                                                 {"int8", CudaCodec::int8},
                                                                 {"e3m0", CudaCodec::e3m0}};
  return all;
}

void check_launch(cudaError_t status) {
  CAIRN_CHECK(status == cudaSuccess, "a codec's kernel did not start: {}", cudaGetErrorString(status));
}

}  // namespace

bool has_cuda_codec(std::string_view codec) { return cuda_codecs().contains(codec); }

at::Tensor encode_on_cuda(std::string_view codec, const at::Tensor& values, int64_t bytes) {
  CAIRN_CHECK(values.is_cuda() && values.is_contiguous() && values.scalar_type() == at::kFloat, "{}", values.toString());
  const c10::cuda::CUDAGuard device(values.device());
  at::Tensor codes = at::empty({bytes}, values.options().dtype(at::kByte));
  check_launch(launch_encode(cuda_codecs().find(codec)->second, values.const_data_ptr<float>(), values.numel(),
                             codes.mutable_data_ptr<uint8_t>(), c10::cuda::getCurrentCUDAStream(values.device().index())));
  return codes;
}

at::Tensor decode_on_cuda(std::string_view codec, const at::Tensor& codes, int64_t count) {
  CAIRN_CHECK(codes.is_cuda() && codes.is_contiguous() && codes.scalar_type() == at::kByte, "{}", codes.toString());
  const c10::cuda::CUDAGuard device(codes.device());
  at::Tensor values = at::empty({count}, codes.options().dtype(at::kFloat));
  check_launch(launch_decode(cuda_codecs().find(codec)->second, codes.const_data_ptr<uint8_t>(), count, values.mutable_data_ptr<float>(),
                             c10::cuda::getCurrentCUDAStream(codes.device().index())));
  return values;
}

}  // namespace cairn::kernels
