// e3m0: 4-bit floats with a sign, three exponent bits and no mantissa, in blocks of 128 with one bf16 scale s = max |x|.
//
//   encode  c = 7 + round(log2(|x| / s)), clamped to 0 .. 7
//   decode  c = 0: 0;  c > 0: sign(x) s 2^(c - 7)
#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/codec/block.h"
#include "comm/codec/bytes.h"

namespace cairn::comm {
namespace {

constexpr int64_t kBlock = 128, kHalf = kBlock / 2, kScaleBytes = 2, kBlockBytes = kScaleBytes + kHalf;
constexpr uint32_t kInfinite = 0x7f800000;
constexpr float kTiniest = 0x1p-110f;  // a smaller block is zero, so that every decoded value is a normal float
constexpr uint16_t kTiniestScale = std::bit_cast<uint32_t>(kTiniest) >> 16;
constexpr float kRootOfTwo = 1.41421354f;         // rounding in log2: the exponent of x * sqrt(2) is the nearest power of two
constexpr uint32_t kBias = 127, kCodesAbove = 7;  // code c > 0 is scale * 2^(c - 7)
constexpr uint8_t kLowest = kBias - kCodesAbove;

// The nearest finite bf16, ties to even; nan for non-finite values.
CAIRN_INLINE uint16_t to_bf16(uint32_t bits) {
  if (bits >= kInfinite) return 0x7fc0;
  return std::min<uint16_t>(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16), 0x7f7f);
}

// The codes of a block, one per byte.
CAIRN_INLINE void to_codes(const float* in, float inverse, uint8_t* codes) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const float ratio = std::bit_cast<float>(bits & 0x7fffffff) * inverse * kRootOfTwo;  // below 2 sqrt(2), except for rounding
    const auto exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(ratio) >> 23) - static_cast<int32_t>(kBias - kCodesAbove);
    const int32_t above = exponent > 0 ? exponent : 0;
    const int32_t code = above < 7 ? above : 7;
    codes[i] = static_cast<uint8_t>(code | static_cast<int32_t>(code > 0 ? bits >> 31 << 3 : 0));
  }
}

// The same for 16 elements.
CAIRN_INLINE Bytes16 codes_of_16(const float* in, float inverse) {
  Words4 bits[4], exponents[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    bits[j] = load16<Words4>(in + 4 * j);
    exponents[j] = reinterpret_cast<Words4>(reinterpret_cast<Floats4>(bits[j] & 0x7fffffff) * inverse * kRootOfTwo) >> 23;
  }
  const Bytes16 exponent = low_bytes(exponents), sign = high_bytes(bits) >> 7 << 3;
  const Bytes16 above = exponent > kLowest ? exponent - kLowest : Bytes16{};
  const Bytes16 code = above < 7 ? above : Bytes16{} + 7;
  return code | (code > 0 ? sign : Bytes16{});
}

CAIRN_INLINE float value_of(uint32_t code, float scale) {
  const uint32_t power = code & 7;
  const float size = power > 0 ? std::bit_cast<float>((power + kBias - kCodesAbove) << 23) * scale : 0.0f * scale;  // nan stays nan
  return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | (code >> 3) << 31);
}

// Element i of a block of n shares a byte with element i + (n + 1) / 2.
struct Encode {
  // Codes a whole block; `most` = the bits of its largest magnitude. Writes the codes of the first `n` elements only.
  template <int W>
  CAIRN_INLINE static void block(const float* in, int64_t n, uint32_t most, std::byte* out) {
    uint16_t scale = to_bf16(most);
    if (std::bit_cast<float>(most) < kTiniest) scale = 0;
    const float as_float = std::bit_cast<float>(static_cast<uint32_t>(scale) << 16);
    std::memcpy(out, &scale, sizeof scale);
    uint8_t* packed = reinterpret_cast<uint8_t*>(out + kScaleBytes);
    const bool codable = scale != 0 && most < kInfinite;
    if constexpr (kPicksBytes<W>) {
      if (codable && n == kBlock) {
        for (int64_t i = 0; i < kHalf; i += 16) {
          const Bytes16 both = codes_of_16(in + i, 1.0f / as_float) | codes_of_16(in + kHalf + i, 1.0f / as_float) << 4;
          std::memcpy(packed + i, &both, sizeof both);
        }
        return;
      }
    }
    uint8_t codes[kBlock] = {};
    if (codable) to_codes(in, 1.0f / as_float, codes);
    if (n == kBlock) {
#pragma GCC ivdep
      for (int64_t i = 0; i < kHalf; ++i) packed[i] = static_cast<uint8_t>(codes[i] | codes[i + kHalf] << 4);
    } else {
      const int64_t half = (n + 1) / 2;
      for (int64_t i = 0; i < half; ++i) packed[i] = static_cast<uint8_t>(codes[i] | (i + half < n ? codes[i + half] << 4 : 0));
    }
  }

  template <int W>
  CAIRN_INLINE static void run(const float* in, int64_t count, std::byte* out) {
    // As in BlockCodec: finds the maximum of the next block while this one is coded.
    const auto most_of = [](const float* values) __attribute__((always_inline)) {
      return static_cast<uint32_t>(largest_magnitude<W, kBlock>(values));
    };
    uint32_t most = count >= kBlock ? most_of(in) : 0;
    for (; count >= kBlock; count -= kBlock, in += kBlock, out += kBlockBytes) {
      const uint32_t next = count >= 2 * kBlock ? most_of(in + kBlock) : 0;
      block<W>(in, kBlock, most, out);
      most = next;
    }
    if (count == 0) return;
    float values[kBlock] = {};
    std::copy_n(in, count, values);
    block<W>(values, count, most_of(values), out);
  }
};

// Decodes a whole block by table lookup of the 16 values (the two nonzero bytes of each float), then scales. Products are exact for all
// scales that encode writes.
template <bool kAdd>
CAIRN_INLINE void from_codes(const uint8_t* packed, float scale, float* out) {
  constexpr auto byte_of = [](uint32_t code, int shift) {
    const uint32_t power = code & 7, size = power > 0 ? (power + kBias - kCodesAbove) << 23 : 0;
    return static_cast<uint8_t>((size | code >> 3 << 31) >> shift);
  };
  Bytes16 upper, lower;
#pragma GCC unroll 16
  for (uint32_t c = 0; c < 16; ++c) upper[c] = byte_of(c, 24), lower[c] = byte_of(c, 16);
  const auto put = [&](Bytes16 words, float* to) __attribute__((always_inline)) {
    const Floats4 value = reinterpret_cast<Floats4>(words) * scale, sum = kAdd ? load16<Floats4>(to) + value : value;
    std::memcpy(to, &sum, sizeof sum);
  };
  const auto put_all = [&](Bytes16 codes, float* to) __attribute__((always_inline)) {
    const Bytes16 high = __builtin_shuffle(upper, codes), low = __builtin_shuffle(lower, codes), none{};
    const Bytes16 first = first_in_turn(low, high), second = second_in_turn(low, high);
    put(first_pairs_in_turn(none, first), to);
    put(second_pairs_in_turn(none, first), to + 4);
    put(first_pairs_in_turn(none, second), to + 8);
    put(second_pairs_in_turn(none, second), to + 12);
  };
  for (int64_t i = 0; i < kHalf; i += 16) {
    const Bytes16 both = load16<Bytes16>(packed + i);
    put_all(both & 15, out + i);
    put_all(both >> 4, out + kHalf + i);
  }
}

template <bool kAdd>
struct Decode {
  template <int W>
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
      if (kPicksBytes<W> && count >= kBlock && scale >= kTiniestScale && scale < kInfinite >> 16) {
        if constexpr (kPicksBytes<W>) from_codes<kAdd>(packed, as_float, out);
      } else if (count >= kBlock) {
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
