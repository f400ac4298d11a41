// int8 in blocks of 256 with one float scale s:
//
//   s = max |x| / 127, rounded to 17 significant bits;   c = round(x / s) in -127 .. 127;   decoded: c s
// With 17 bits times 7 bits the product c s is exact in a float. So a compiler that fuses it with a sum cannot change a result, the largest
// value has code 127, and decoded values are coded the same again.
#include <bit>

#include "comm/codec/block.h"

namespace cairn::comm {
namespace {

constexpr int32_t kMagnitudeBits = 0x7fffffff;
constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int32_t kEnd = std::bit_cast<int32_t>(127.0f);
constexpr float kSmallest = 0x1p-119f;           // a smaller block is zero, so that scales are normal floats
constexpr float kAligner = 12582912.0f;          // 1.5 * 2^23: added to a small float, leaves the nearest integer in the low bits
constexpr uint32_t kScaleBits = ~uint32_t{127};  // 17 significant bits

struct Int8 {
  static constexpr std::string_view kName = "int8";
  static constexpr int64_t kBlock = 256, kRun = 256, kScaleBytes = 4, kCodeBytes = 1;

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t most, std::byte* out) {
    const float largest = std::bit_cast<float>(most);
    float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(largest / 127.0f) + 64) & kScaleBits);
    float inverse = 1.0f / scale;
    if (most >= kInfinityBits) scale = std::bit_cast<float>(kInfinityBits | (1 << 22));  // nan: the whole block decodes to nan
    if (largest < kSmallest) scale = inverse = 0;
    std::memcpy(out, &scale, sizeof scale);
    uint8_t* codes = reinterpret_cast<uint8_t*>(out + sizeof scale);
    if (most >= kInfinityBits) [[unlikely]] {  // explicit: machines differ in the sign of nan
      for (int64_t i = 0; i < kRun; ++i) codes[i] = (std::bit_cast<int32_t>(in[i]) & kMagnitudeBits) >= kInfinityBits ? 127 : 0;
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) {
      // Clamps by bits, which grow with the magnitude: cheaper than comparing floats. It also keeps the product from being fused with the
      // sum.
      const auto ratio = std::bit_cast<int32_t>(in[i] * inverse);
      const int32_t size = ratio & kMagnitudeBits, within = (size < kEnd ? size : kEnd) | (ratio & ~kMagnitudeBits);
      codes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(within) + kAligner));
    }
  }

  template <bool kAdd>
  CAIRN_INLINE static void decode(const std::byte* in, float* out) {
    float scale;
    std::memcpy(&scale, in, sizeof scale);
    const int8_t* codes = reinterpret_cast<const int8_t*>(in + sizeof scale);
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) {
      const float value = static_cast<float>(codes[i]) * scale;
      out[i] = kAdd ? out[i] + value : value;
    }
  }
};

}  // namespace

std::unique_ptr<const Codec> make_int8_codec() { return std::make_unique<BlockCodec<Int8>>(); }

}  // namespace cairn::comm
