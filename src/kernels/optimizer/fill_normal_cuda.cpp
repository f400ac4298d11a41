// Normal values on a GPU: from tensors to pointers.
#include "kernels/optimizer/fill_normal_cuda.h"

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/optimizer/fill_normal_kernel.h"

namespace cairn::kernels {

bool fill_normal_on_cuda(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation) {
  if (!all_kernel_inputs(flat)) return false;
  const CudaDeviceGuard device(flat.device());
  check_launch(launch_fill_normal({.elements = elements_of(flat),
                                   .to = flat.mutable_data_ptr(),
                                   .count = flat.numel(),
                                   .first_index = first_index,
                                   .key = random.key,
                                   .stream = random.stream,
                                   .deviation = static_cast<float>(deviation)},
                                  stream_of(flat)),
               "normal values");
  return true;
}

}  // namespace cairn::kernels
