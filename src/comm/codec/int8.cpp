// Whole numbers of 8 bits with a scale per block.
#include <bit>

#include "comm/codec/block.h"

namespace cairn::comm {
namespace {

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kEnd = std::bit_cast<int32_t>(127.0f);
constexpr float kSmallest = 0x1p-119f;           // a block of less is zero: so scales are normal floats
constexpr float kAligner = 12582912.0f;          // 1.5 * 2^23: added to a small float, it leaves the nearest whole number in the low bits
constexpr uint32_t kScaleBits = ~uint32_t{127};  // 17 significant bits: times a code of 7 bits, that is exact in a float

// x is sent as the whole number nearest to x / scale, with scale = largest / 127 rounded to 17 bits. So the product of code and scale is
// exact (no compiler can change a sum by fusing it) and finite, the largest value has code 127, and what was decoded is coded the same
// again.
struct Int8 {
  static constexpr std::string_view kName = "int8";
  static constexpr int64_t kBlock = 256, kRun = 256, kScaleBytes = 4, kCodeBytes = 1;

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t most, std::byte* out) {
    const float largest = std::bit_cast<float>(most);
    float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(largest / 127.0f) + 64) & kScaleBits);
    float inverse = 1.0f / scale;
    if (most >= kInfinity) scale = std::bit_cast<float>(kInfinity | (1 << 22));  // nan: so is all of the block, decoded
    if (largest < kSmallest) scale = inverse = 0;
    std::memcpy(out, &scale, sizeof scale);
    uint8_t* codes = reinterpret_cast<uint8_t*>(out + sizeof scale);
    if (most >= kInfinity) [[unlikely]] {  // by hand: machines differ in the sign of what is no number
      for (int64_t i = 0; i < kRun; ++i) codes[i] = (std::bit_cast<int32_t>(in[i]) & kMagnitude) >= kInfinity ? 127 : 0;
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) {
      // Bounded by its bits, which grow with the magnitude: cheaper than by floats, of which one may be nan. It also keeps the product from
      // being fused with the sum.
      const auto ratio = std::bit_cast<int32_t>(in[i] * inverse);
      const int32_t size = ratio & kMagnitude, within = (size < kEnd ? size : kEnd) | (ratio & ~kMagnitude);
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
