#include "kernels/device.h"

#include <mutex>

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/check.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"

namespace cairn::kernels {
namespace {

// Global, because libtorch's switch is global; ranks may be threads of one process.
std::mutex deterministic_lock;
int deterministic_count = 0;

// libtorch then prefers FlashAttention's deterministic backward pass to cuDNN's, and refuses operations without a deterministic form.
void set_deterministic(bool wanted) {
  at::globalContext().setDeterministicAlgorithms(wanted, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // we read nothing that we have not written
}

// Expandable segments of the caching allocator avoid fragmentation. They are set here rather than by an environment variable, which child
// processes would inherit. A user's PYTORCH_ALLOC_CONF takes precedence. Tried out at once: some drivers (under WSL2) offer them and fail.
void enable_expandable_segments(const at::Device& gpu) {
  if (!c10::CachingAllocator::getAllocatorSettings().empty()) return;
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  try {
    at::empty({1}, at::TensorOptions().device(gpu));
  } catch (const c10::Error&) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  }
}

}  // namespace

bool can_use_cuda() { return has_cuda_kernels() && at::hasCUDA(); }

int64_t total_memory_bytes(const at::Device& gpu) {
  at::globalContext().lazyInitDevice(gpu.type());
  return static_cast<int64_t>(c10::getDeviceAllocator(gpu.type())->getMemoryInfo(gpu.index()).second);
}

int64_t free_memory_bytes(const at::Device& gpu) {
  at::globalContext().lazyInitDevice(gpu.type());
  return static_cast<int64_t>(c10::getDeviceAllocator(gpu.type())->getMemoryInfo(gpu.index()).first);
}

DeterministicAlgorithms::DeterministicAlgorithms() {
  const std::lock_guard guard(deterministic_lock);
  if (deterministic_count++ == 0) set_deterministic(true);
}

DeterministicAlgorithms::~DeterministicAlgorithms() {
  const std::lock_guard guard(deterministic_lock);
  if (--deterministic_count == 0) set_deterministic(false);
}

at::Device device_from_name(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  CAIRN_CHECK(name == "cuda", "a device called {}", name);
  if (!has_cuda_kernels())
    base::fail_input("--device cuda: this build has no CUDA; build it with CAIRN_PRESET=cuda where nvcc is installed");
  if (!at::hasCUDA()) base::fail_input("--device cuda: no usable GPU was found (nvidia-smi shows what the driver sees)");
  const at::Device gpu(at::kCUDA, 0);
  enable_expandable_segments(gpu);
  return gpu;
}

}  // namespace cairn::kernels
