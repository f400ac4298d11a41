#include "kernels/device.h"

#include <cstdlib>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

bool repeatable() { return at::globalContext().deterministicAlgorithms() && !at::globalContext().deterministicAlgorithmsWarnOnly(); }

// Ranks that are threads of one process each ask for it; it ends with the last of them.
TEST(DeterministicAlgorithms, HoldWhileAnybodyWantsThem) {
  EXPECT_FALSE(repeatable());
  {
    const DeterministicAlgorithms one;
    EXPECT_TRUE(repeatable());
    EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
    { const DeterministicAlgorithms other; }
    EXPECT_TRUE(repeatable());
  }
  EXPECT_FALSE(repeatable());
}

TEST(DeviceOnCuda, LetsSegmentsOfMemoryGrow) {
  CAIRN_NEEDS_GPU();
  if (std::getenv("PYTORCH_ALLOC_CONF") || std::getenv("PYTORCH_CUDA_ALLOC_CONF")) GTEST_SKIP() << "the environment says what holds";
  static bool was_here = false;
  if (std::exchange(was_here, true)) GTEST_SKIP() << "what was set below holds for the rest of the process";
  device_from_name("cuda");
  EXPECT_TRUE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments());
  // As it was: compute-sanitizer may take copies of boxes across parts of such segments for faults, in tests that come after.
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
}

}  // namespace
}  // namespace cairn::kernels
