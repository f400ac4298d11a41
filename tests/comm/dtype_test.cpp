#include "comm/dtype.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::comm {
namespace {

uint16_t bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }  // of values that fit

template <typename T>
std::vector<T> combined(Reduce reduce, Dtype dtype, const std::vector<std::vector<T>>& sources) {
  std::vector<T> out(sources[0].size());
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  combine(reduce, dtype, out.data(), pointers, static_cast<int64_t>(out.size()));
  return out;
}

TEST(Combine, AddsFromLeftToRightAtEverySize) {
  for (const int64_t count : {0, 1, 7, 255, 256, 257, 1000}) {
    std::vector<std::vector<float>> x(3, std::vector<float>(static_cast<size_t>(count)));
    for (int s = 0; s < 3; ++s) {
      for (int64_t i = 0; i < count; ++i) x[s][i] = std::sin(static_cast<float>(i + s)) * (s == 1 ? 1e6f : 1.0f);
    }
    const auto sum = combined(Reduce::sum, Dtype::f32, x);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], (x[0][i] + x[1][i]) + x[2][i]) << i << " of " << count;
  }
}

TEST(Combine, TheOutputMayBeASource) {
  std::vector<int64_t> a{1, 2, 3}, b{10, 20, 30};
  const void* const sources[] = {b.data(), a.data()};
  combine(Reduce::sum, Dtype::i64, a.data(), sources, 3);
  EXPECT_EQ(a, (std::vector<int64_t>{11, 22, 33}));
  add_into(Dtype::i64, a.data(), b.data(), 3);
  EXPECT_EQ(a, (std::vector<int64_t>{21, 42, 63}));
}

// 256 + 1 + 1: bf16 has 8 bits, so rounding after each addition would stay at 256.
TEST(Combine, RoundsBf16OnceAtTheEnd) {
  const auto sum = combined<uint16_t>(Reduce::sum, Dtype::bf16, {{bf16(256)}, {bf16(1)}, {bf16(1)}});
  EXPECT_EQ(sum[0], bf16(258));
}

TEST(Combine, RoundsBf16ToTheNearestEven) {
  EXPECT_EQ(combined<uint16_t>(Reduce::sum, Dtype::bf16, {{bf16(256)}, {bf16(1)}})[0], bf16(256));  // 257 lies between 256 and 258
  EXPECT_EQ(combined<uint16_t>(Reduce::sum, Dtype::bf16, {{bf16(258)}, {bf16(1)}})[0], bf16(260));  // 259 between 258 and 260
}

TEST(Combine, HalvesComeBackFromEveryBitPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const bool nan = (half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0;
    const uint16_t back = combined<uint16_t>(Reduce::max, Dtype::f16, {{half}})[0];
    if (nan) {
      ASSERT_TRUE((back & 0x7c00) == 0x7c00 && (back & 0x3ff) != 0);
    } else {
      ASSERT_EQ(back, half);
    }
  }
}

TEST(Combine, AddsHalvesWithTheRightRounding) {
  const auto sum = [](uint16_t a, uint16_t b) { return combined<uint16_t>(Reduce::sum, Dtype::f16, {{a}, {b}})[0]; };
  EXPECT_EQ(sum(0x3c00, 0x3c00), 0x4000);  // 1 + 1 = 2
  EXPECT_EQ(sum(0x7bff, 0x7bff), 0x7c00);  // 65504 twice is infinite
  EXPECT_EQ(sum(0x0001, 0x0001), 0x0002);  // the smallest twice
  EXPECT_EQ(sum(0x6800, 0x3c00), 0x6800);  // 2048 + 1: to even
  EXPECT_EQ(sum(0x03ff, 0x0001), 0x0400);  // the largest subnormal and the smallest: normal
}

TEST(Combine, ANanAnywhereIsTheResultOfMaxAndMin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduce reduce : {Reduce::max, Reduce::min, Reduce::sum}) {
    EXPECT_TRUE(std::isnan(combined<float>(reduce, Dtype::f32, {{1}, {nan}, {2}})[0]));
    EXPECT_TRUE(std::isnan(combined<float>(reduce, Dtype::f32, {{nan}, {1}})[0]));
  }
  EXPECT_EQ(combined<float>(Reduce::max, Dtype::f32, {{1}, {3}, {2}})[0], 3);
  EXPECT_EQ(combined<float>(Reduce::min, Dtype::f32, {{2}, {1}, {3}})[0], 1);
}

TEST(Combine, IntegersWrap) {
  EXPECT_EQ(combined<int32_t>(Reduce::sum, Dtype::i32, {{std::numeric_limits<int32_t>::max()}, {1}})[0],
            std::numeric_limits<int32_t>::min());
  EXPECT_EQ(combined<uint8_t>(Reduce::sum, Dtype::u8, {{200}, {100}})[0], 44);
  EXPECT_EQ(combined<double>(Reduce::sum, Dtype::f64, {{0.1}, {0.2}})[0], 0.1 + 0.2);
}

}  // namespace
}  // namespace cairn::comm
