// A build without CUDA rounds nothing on a GPU.
#include "kernels/stochastic_rounding.h"

#include "base/check.h"
#include "base/random.h"

namespace cairn::kernels {

void round_stochastically_on_cuda(const at::Tensor&, const at::Tensor&, const base::Random&, int64_t) {
  CAIRN_CHECK(false, "a tensor on a GPU in a build without CUDA");
}

}  // namespace cairn::kernels
