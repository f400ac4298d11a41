#include <ATen/cuda/CUDAContext.h>

#include "kernels/peak_flops.h"

namespace cairn::kernels {

std::string gpu_name(const at::Device& device) { return device.is_cuda() ? at::cuda::getDeviceProperties(device.index())->name : ""; }

}  // namespace cairn::kernels
