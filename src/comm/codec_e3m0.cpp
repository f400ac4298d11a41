// Four bits: a sign and a power of two below the block's largest value.
#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/codec.h"
#include "kernels/simd.h"

namespace cairn::comm {
namespace {

constexpr int64_t kBlock = 128, kHalf = kBlock / 2, kScaleBytes = 2, kBlockBytes = kScaleBytes + kHalf;
constexpr uint32_t kInfinite = 0x7f800000;
constexpr float kTiniest = 0x1p-110f;             // a block of less is zero: so every code is a normal float
constexpr float kRootOfTwo = 1.41421354f;         // half a power of two up: what is left of its exponent is the nearest in log2
constexpr uint32_t kBias = 127, kCodesAbove = 7;  // code c > 0 is scale * 2^(c - 7)

// The nearest finite bf16, ties to even. Of what is not finite: nan.
CAIRN_INLINE uint16_t to_bf16(uint32_t bits) {
  if (bits >= kInfinite) return 0x7fc0;
  return std::min<uint16_t>(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16), 0x7f7f);
}

// Codes of a block, one to a byte.
CAIRN_INLINE void to_codes(const float* in, float inverse, uint8_t* codes) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const float ratio = std::bit_cast<float>(bits & 0x7fffffff) * inverse * kRootOfTwo;  // below 2 times the root, but for rounding
    const auto exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(ratio) >> 23) - static_cast<int32_t>(kBias - kCodesAbove);
    const int32_t above = exponent > 0 ? exponent : 0;
    const int32_t code = above < 7 ? above : 7;
    codes[i] = static_cast<uint8_t>(code | static_cast<int32_t>(code > 0 ? bits >> 31 << 3 : 0));
  }
}

CAIRN_INLINE float value_of(uint32_t code, float scale) {
  const uint32_t power = code & 7;
  const float size = power > 0 ? std::bit_cast<float>((power + kBias - kCodesAbove) << 23) * scale : 0.0f * scale;  // nan stays nan
  return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | (code >> 3) << 31);
}

// Element i of a block of n shares a byte with element i + (n + 1) / 2.
struct Encode {
  template <int>
  CAIRN_INLINE static void run(const float* in, int64_t count, std::byte* out) {
    for (; count > 0; count -= kBlock, in += kBlock, out += kBlockBytes) {
      const int64_t n = std::min(count, kBlock), half = (n + 1) / 2;
      float values[kBlock] = {};
      std::copy_n(in, n, values);
      uint32_t most = 0;
      for (int64_t i = 0; i < kBlock; ++i) most = std::max(most, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
      uint16_t scale = to_bf16(most);
      if (std::bit_cast<float>(most) < kTiniest) scale = 0;
      const float as_float = std::bit_cast<float>(static_cast<uint32_t>(scale) << 16);
      std::memcpy(out, &scale, sizeof scale);
      uint8_t codes[2 * kBlock] = {};
      if (scale != 0 && most < kInfinite) to_codes(values, 1.0f / as_float, codes);
      uint8_t* packed = reinterpret_cast<uint8_t*>(out + kScaleBytes);
      if (n == kBlock) {
#pragma GCC ivdep
        for (int64_t i = 0; i < kHalf; ++i) packed[i] = static_cast<uint8_t>(codes[i] | codes[i + kHalf] << 4);
      } else {
        for (int64_t i = 0; i < half; ++i) packed[i] = static_cast<uint8_t>(codes[i] | codes[i + half] << 4);
      }
    }
  }
};

template <bool kAdd>
struct Decode {
  template <int>
  CAIRN_INLINE static void run(const std::byte* in, int64_t count, float* out) {
    for (; count > 0; count -= kBlock, in += kBlockBytes, out += kBlock) {
      uint16_t scale;
      std::memcpy(&scale, in, sizeof scale);
      const float as_float = std::bit_cast<float>(static_cast<uint32_t>(scale) << 16);
      const uint8_t* packed = reinterpret_cast<const uint8_t*>(in + kScaleBytes);
      const auto put = [&](int64_t i, uint32_t code) {
        const float value = value_of(code, as_float);
        out[i] = kAdd ? out[i] + value : value;
      };
      if (count >= kBlock) {
#pragma GCC ivdep
        for (int64_t i = 0; i < kHalf; ++i) put(i, packed[i] & 15);
#pragma GCC ivdep
        for (int64_t i = 0; i < kHalf; ++i) put(i + kHalf, packed[i] >> 4);
      } else {
        const int64_t half = (count + 1) / 2;
        for (int64_t i = 0; i < count; ++i) put(i, i < half ? packed[i] & 15 : packed[i - half] >> 4);
      }
    }
  }
};

class E3m0 final : public Codec {
 public:
  std::string_view name() const override { return "e3m0"; }
  int64_t block() const override { return kBlock; }
  int64_t encoded_bytes(int64_t count) const override {
    const int64_t rest = count % kBlock;
    return count / kBlock * kBlockBytes + (rest > 0 ? kScaleBytes + (rest + 1) / 2 : 0);
  }
  void encode(const float* in, int64_t count, std::byte* out) const override { kernels::simd::run<Encode>(in, count, out); }
  void decode(const std::byte* in, int64_t count, float* out) const override { kernels::simd::run<Decode<false>>(in, count, out); }
  void decode_add(const std::byte* in, int64_t count, float* out) const override { kernels::simd::run<Decode<true>>(in, count, out); }
};

}  // namespace

std::unique_ptr<const Codec> make_e3m0_codec() { return std::make_unique<E3m0>(); }

}  // namespace cairn::comm
