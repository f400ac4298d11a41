#include "kernels/device.h"

#include "base/check.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"

namespace cairn::kernels {

at::Device device_called(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  CAIRN_CHECK(name == "cuda", "a device called {}", name);
  if (!has_cuda_kernels())
    base::fail_input("--device cuda: this build has no CUDA; build it with CAIRN_PRESET=cuda where nvcc is installed");
  if (!at::hasCUDA()) base::fail_input("--device cuda: no usable GPU was found (nvidia-smi shows what the driver sees)");
  return at::Device(at::kCUDA, 0);
}

}  // namespace cairn::kernels
