// Stochastic rounding on a GPU: from tensors to pointers.
#include "kernels/stochastic_rounding.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/optimizer/stochastic_rounding_kernel.h"

namespace cairn::kernels {

void round_stochastically_on_cuda(const at::Tensor& to, const at::Tensor& from, const base::Random& random, int64_t first_index) {
  const c10::cuda::CUDAGuard device(to.device());
  const RoundingLaunch launch{.to = static_cast<uint16_t*>(to.mutable_data_ptr()),
                              .from = from.const_data_ptr<float>(),
                              .count = to.numel(),
                              .first_index = first_index,
                              .key = random.key,
                              .stream = random.stream};
  const cudaError_t status = launch_rounding(launch, c10::cuda::getCurrentCUDAStream(to.device().index()));
  CAIRN_CHECK(status == cudaSuccess, "the rounding kernel did not start: {}", cudaGetErrorString(status));
}

}  // namespace cairn::kernels
