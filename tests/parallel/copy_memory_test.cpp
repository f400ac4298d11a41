#include "parallel/experts/copy_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::parallel {
namespace {

std::string refused_slots(const CopyMemory& memory, int64_t slots, int64_t free_bytes) {
  try {
    check_copies_fit(memory, slots, free_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "";
}

TEST(CopyMemory, SaysHowManyCopiesFit) {
  const CopyMemory memory{.layers = 3, .own = 2, .experts = 16, .expert_bytes = 1 << 20};
  EXPECT_EQ(refused_slots(memory, 5, 21 << 20), "");  // (2 + 5) * 3 MiB
  EXPECT_EQ(
      refused_slots(memory, 5, (21 << 20) - 1),
      "expert.memory_slots = 5: with 5 copies and 2 experts of its own in each of 3 layers at once, a rank needs 21.0 MiB, and 21.0 MiB "
      "are free: 4 fit. Lower it, or use expert.placement = ep.");
  EXPECT_THAT(refused_slots(memory, 5, 1 << 20), testing::HasSubstr("0 fit"));
  EXPECT_EQ(refused_slots(memory, 1000, 48 << 20), "");  // there are no more than 14 to copy
  EXPECT_EQ(refused_slots(memory, 0, 0), "");
}

}  // namespace
}  // namespace cairn::parallel
