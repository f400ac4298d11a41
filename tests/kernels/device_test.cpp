#include "kernels/device.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace cairn::kernels {
namespace {

bool repeatable() { return at::globalContext().deterministicAlgorithms() && !at::globalContext().deterministicAlgorithmsWarnOnly(); }

// Ranks that are threads of one process each ask for it; it ends with the last of them.
TEST(RepeatableBits, HoldWhileAnybodyWantsThem) {
  EXPECT_FALSE(repeatable());
  {
    const RepeatableBits one;
    EXPECT_TRUE(repeatable());
    EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
    { const RepeatableBits other; }
    EXPECT_TRUE(repeatable());
  }
  EXPECT_FALSE(repeatable());
}

}  // namespace
}  // namespace cairn::kernels
