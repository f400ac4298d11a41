// A build without CUDA has no codecs on a GPU.
#include "kernels/codec.h"

#include "base/check.h"

namespace cairn::kernels {

bool has_cuda_codec(std::string_view) { return false; }
at::Tensor encode_on_cuda(std::string_view, const at::Tensor&, int64_t) { CAIRN_CHECK(false, "a tensor on a GPU in a build without CUDA"); }
at::Tensor decode_on_cuda(std::string_view, const at::Tensor&, int64_t) { CAIRN_CHECK(false, "a tensor on a GPU in a build without CUDA"); }

}  // namespace cairn::kernels
