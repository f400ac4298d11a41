#include "memory/byte_ring.h"

#include <algorithm>
#include <deque>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::memory {
namespace {

struct Given {
  std::byte *begin, *end;
};

TEST(ByteRing, GivesDisjointRegionsInsideTheMemory) {
  std::vector<std::byte> memory(100'003);
  ByteRing ring(memory);
  std::deque<Given> held;
  const base::Random random(7);
  int64_t refused = 0;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto bytes = static_cast<int64_t>(1 + random.below(4 * i, 30'000));
    const int64_t remainder = i % 3 == 0 ? -1 : static_cast<int64_t>(random.below(4 * i + 1, 4096));
    std::byte* const begin = ring.reserve(bytes, remainder);
    if (begin != nullptr) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % (remainder < 0 ? 64 : 4096), static_cast<uintptr_t>(std::max<int64_t>(remainder, 0)));
      ASSERT_GE(begin, memory.data());
      ASSERT_LE(begin + bytes, memory.data() + memory.size());
      for (const Given& other : held) ASSERT_TRUE(begin + bytes <= other.begin || begin >= other.end);
      held.push_back({begin, begin + bytes});
      ASSERT_LE(ring.used(), ring.capacity());
    } else {
      ++refused;
    }
    if (!held.empty() && (begin == nullptr || random.below(4 * i + 2, 2) == 0)) {
      ring.release_oldest();
      held.pop_front();
    }
  }
  EXPECT_GT(refused, 100);
  for (; !held.empty(); held.pop_front()) ring.release_oldest();
  EXPECT_EQ(ring.used(), 0);
}

TEST(ByteRing, TakesAsMuchAsItHas) {
  alignas(4096) static std::byte memory[3 * 4096];
  ByteRing ring(memory);
  ASSERT_EQ(ring.reserve(3 * 4096), memory);
  EXPECT_EQ(ring.reserve(1), nullptr);  // full, with head and tail at one place
  EXPECT_EQ(ring.peak(), 3 * 4096);
  ring.release_oldest();
  ring.forget_peak();
  EXPECT_EQ(ring.peak(), 0);
  EXPECT_EQ(ring.reserve(3 * 4096 + 1), nullptr);
  EXPECT_EQ(ring.reserve(100), memory);
  EXPECT_EQ(ring.reserve(100, 0), memory + 4096);
  ring.release_oldest();
  EXPECT_EQ(ring.reserve(4096, 0), memory + 2 * 4096);
  EXPECT_EQ(ring.reserve(4096, 0), memory);  // from the start again
  EXPECT_EQ(ring.reserve(1), nullptr);
}

}  // namespace
}  // namespace cairn::memory
