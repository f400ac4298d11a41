// fp32, bf16, fp16, and the two fp8 formats of the Open Compute Project (e4m3, e5m2) in blocks of 128 with a power-of-two scale s:
//
//   encode  c = fp8(x / s),  s = the least 2^k, k >= -126, that brings the block's largest finite value into the range of the format
//   decode  x = c s          (exact: s is a power of two)
#include <bit>

#include "comm/codec/block.h"
#include "comm/codec/bytes.h"

namespace cairn::comm {
namespace {

CAIRN_INLINE constexpr uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
CAIRN_INLINE float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// For numbers below 2^31: compared as signed integers, which all vector units support.
CAIRN_INLINE bool less(uint32_t a, uint32_t b) { return static_cast<int32_t>(a) < static_cast<int32_t>(b); }
CAIRN_INLINE uint32_t least(uint32_t a, uint32_t b) { return less(a, b) ? a : b; }
CAIRN_INLINE uint32_t most(uint32_t a, uint32_t b) { return less(a, b) ? b : a; }

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

// 2^exponent, for exponents of normal floats.
constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

template <bool kAdd>
CAIRN_INLINE void put(float& out, float value) {
  out = kAdd ? out + value : value;
}

struct Fp32 {
  static constexpr std::string_view kName = "fp32";
  static constexpr int64_t kBlock = 1, kRun = 256, kScaleBytes = 0, kCodeBytes = 4;

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t /*most*/, std::byte* out) {
    std::memcpy(out, in, 4 * kRun);
  }
  template <bool kAdd>
  CAIRN_INLINE static void decode(const std::byte* in, float* out) {
    const Code32* codes = reinterpret_cast<const Code32*>(in);
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) put<kAdd>(out[i], float_of(codes[i]));
  }
};

struct Bf16 {
  static constexpr std::string_view kName = "bf16";
  static constexpr int64_t kBlock = 1, kRun = 256, kScaleBytes = 0, kCodeBytes = 2;

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t /*most*/, std::byte* out) {
    Code16* codes = reinterpret_cast<Code16*>(out);
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) {
      const uint32_t bits = bits_of(in[i]);
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      codes[i] = static_cast<uint16_t>(less(kInfinity, bits & kMagnitude) ? (bits >> 16) | 0x40 : rounded);
    }
  }
  template <bool kAdd>
  CAIRN_INLINE static void decode(const std::byte* in, float* out) {
    const Code16* codes = reinterpret_cast<const Code16*>(in);
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) put<kAdd>(out[i], float_of(uint32_t{codes[i]} << 16));
  }
};

// A float format with a sign, E exponent bits and M mantissa bits, with subnormals. Codes from kTop on are not finite.
template <int E, int M, uint32_t kTop, uint32_t kNan>
struct SmallFloat {
  static constexpr int kBias = (1 << (E - 1)) - 1, kShift = 23 - M;
  static constexpr uint32_t kSign = 1u << (E + M);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr float kSmallestNormal = power_of_two(1 - kBias);

  // Rounds by an addition: adding a power of two whose last bit has the weight of the result's last bit leaves the rounded mantissa in the
  // low bits (with its leading one if the result is normal); the exponent is added on top.
  CAIRN_INLINE static uint32_t encode(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & kMagnitude;
    const uint32_t size = least(magnitude, (kTop << kShift) + kRebias);
    const uint32_t exponent = most(size & kInfinity, bits_of(kSmallestNormal));
    const uint32_t aligner = exponent + (static_cast<uint32_t>(kShift) << 23);
    const uint32_t mantissa = bits_of(float_of(size) + float_of(aligner)) - aligner;
    const uint32_t code = mantissa + ((exponent - bits_of(kSmallestNormal)) >> kShift);
    const uint32_t sign = (bits >> (31 - E - M)) & kSign;
    // The bound is never reached: it keeps the compiler from narrowing the terms above instead of the result.
    return least(sign | (kTop != kNan && less(kInfinity, magnitude) ? kNan : code), 2 * kSign - 1);
  }

  // 16 finite values to 8-bit codes, in range once they are scaled. The same steps on the low bytes of words only, where those of aligner
  // and exponent are zero.
  CAIRN_INLINE static Bytes16 encode_16(const float* in, float scale) {
    constexpr uint32_t kSmallest = bits_of(kSmallestNormal);
    Words4 signs[4], codes[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      signs[j] = reinterpret_cast<Words4>(load16<Floats4>(in + 4 * j) * scale);
      const Words4 size = signs[j] & kMagnitude, power = size & kInfinity, smallest = Words4{} + kSmallest;
      const Words4 exponent = power > smallest ? power : smallest, aligner = exponent + (static_cast<uint32_t>(kShift) << 23);
      codes[j] = reinterpret_cast<Words4>(reinterpret_cast<Floats4>(size) + reinterpret_cast<Floats4>(aligner)) + (exponent >> kShift);
    }
    return (low_bytes(codes) - static_cast<uint8_t>(kSmallest >> kShift)) | (high_bytes(signs) & 0x80);
  }

  // 16 finite 8-bit codes to floats. Their bits at the top of a word, with a longer exponent, form a float that is too small by a constant
  // power of two (subnormal codes give subnormal floats).
  static constexpr float kTooSmall = power_of_two(127 - kBias);
  template <int64_t kCount>
  CAIRN_INLINE static bool all_finite(const uint8_t* codes) {
    Bytes16 other{};
#pragma GCC unroll 8
    for (int64_t i = 0; i < kCount; i += 16) {
      const Bytes16 size = load16<Bytes16>(codes + i) & static_cast<uint8_t>(kSign - 1);
      other |= size >= static_cast<uint8_t>(kTop) ? ~Bytes16{} : Bytes16{};
    }
    uint64_t halves[2];
    std::memcpy(halves, &other, sizeof halves);
    return (halves[0] | halves[1]) == 0;
  }
  template <bool kAdd>
  CAIRN_INLINE static void decode_16(const uint8_t* codes, float factor, float* out) {
    using Ints4 = kernels::simd::Int<4>;
    const Bytes16 all = load16<Bytes16>(codes), none{}, halves[2] = {first_in_turn(none, all), second_in_turn(none, all)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto top =
          reinterpret_cast<Ints4>(j % 2 == 0 ? first_pairs_in_turn(none, halves[j / 2]) : second_pairs_in_turn(none, halves[j / 2]));
      const Ints4 bits = (top >> (8 - E)) & static_cast<int32_t>(~(((1u << (8 - E)) - 1) << (23 + E)));  // only the first copy of the sign
      const Floats4 value = reinterpret_cast<Floats4>(bits) * factor, sum = kAdd ? load16<Floats4>(out + 4 * j) + value : value;
      std::memcpy(out + 4 * j, &sum, sizeof sum);
    }
  }

  CAIRN_INLINE static float decode(uint32_t code) {
    const uint32_t size = code & (kSign - 1);
    const uint32_t normal = (size << kShift) + kRebias;
    const uint32_t tiny = bits_of(float_of(normal + (1u << 23)) - kSmallestNormal);
    const uint32_t finite = less(size, 1u << M) ? tiny : normal;
    const uint32_t other = kTop == kNan ? kInfinity | (1u << 22) : kInfinity | ((size - kTop) << kShift);
    return float_of((code & kSign) << (31 - E - M) | (less(size, kTop) ? finite : other));
  }
};

struct Fp16 {
  using Number = SmallFloat<5, 10, 0x7c00, 0x7e00>;
  static constexpr std::string_view kName = "fp16";
  static constexpr int64_t kBlock = 1, kRun = 256, kScaleBytes = 0, kCodeBytes = 2;

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t /*most*/, std::byte* out) {
    Code16* codes = reinterpret_cast<Code16*>(out);
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) codes[i] = static_cast<uint16_t>(Number::encode(in[i]));
  }
  template <bool kAdd>
  CAIRN_INLINE static void decode(const std::byte* in, float* out) {
    const Code16* codes = reinterpret_cast<const Code16*>(in);
    uint16_t largest = 0;
    for (int64_t i = 0; i < kRun; ++i) largest = std::max<uint16_t>(largest, codes[i] & 0x7fff);
    if (largest < 0x7c00) [[likely]] {  // finite: with a longer exponent the bits form a float that is too small by a power of two
#pragma GCC ivdep
      for (int64_t i = 0; i < kRun; ++i) {
        const auto bits = static_cast<uint32_t>(static_cast<int32_t>(uint32_t{codes[i]} << 16) >> 3) & 0x8fffffff;
        put<kAdd>(out[i], float_of(bits) * power_of_two(112));
      }
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) put<kAdd>(out[i], Number::decode(codes[i]));
  }
};

// The range of the format ends at 1.75 * 2^kLargest. The scale travels as the exponent byte of a float. Multiplying by it is exact, so it
// costs no precision, and a compiler that fuses it with an addition cannot change the result.
template <class Number, uint32_t kLargest>
struct Fp8 {
  static constexpr int64_t kBlock = 128, kRun = 128, kScaleBytes = 1, kCodeBytes = 1;

  // The bits of the largest magnitude that is not above the given bits.
  CAIRN_INLINE static uint32_t largest_up_to(uint32_t end, const float* in) {
    int32_t largest = 0;
    for (int64_t i = 0; i < kRun; ++i) {
      const uint32_t size = bits_of(in[i]) & kMagnitude;
      const auto magnitude = static_cast<int32_t>(less(end, size) ? 0 : size);
      largest = magnitude > largest ? magnitude : largest;
    }
    return static_cast<uint32_t>(largest);
  }

  template <int W>
  CAIRN_INLINE static void encode(const float* in, int32_t greatest, std::byte* out) {
    auto largest = static_cast<uint32_t>(greatest);
    if (largest >= kInfinity) [[unlikely]]
      largest = largest_up_to(kInfinity - 1, in);
    const uint32_t exponent = most((largest + 0x1fffff) >> 23, kLargest + 1) - kLargest;  // biased; one more if above 1.75
    out[0] = static_cast<std::byte>(exponent);
    const float inverse = float_of((254 - exponent) << 23);
    uint8_t* codes = reinterpret_cast<uint8_t*>(out + 1);
    if constexpr (kPicksBytes<W>) {
      if (largest == static_cast<uint32_t>(greatest)) {  // all finite
        for (int64_t i = 0; i < kRun; i += 16) {
          const Bytes16 sixteen = Number::encode_16(in + i, inverse);
          std::memcpy(codes + i, &sixteen, sizeof sixteen);
        }
        return;
      }
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) codes[i] = static_cast<uint8_t>(Number::encode(in[i] * inverse));
  }
  template <bool kAdd>
  CAIRN_INLINE static void decode(const std::byte* in, float* out) {
    const float scale = float_of(static_cast<uint32_t>(in[0]) << 23);
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(in + 1);
    if constexpr (kPicksBytes<4>) {
      if (const float factor = scale * Number::kTooSmall; bits_of(factor) < kInfinity && Number::template all_finite<kRun>(codes)) {
        for (int64_t i = 0; i < kRun; i += 16) Number::template decode_16<kAdd>(codes + i, factor, out + i);
        return;
      }
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kRun; ++i) put<kAdd>(out[i], Number::decode(codes[i]) * scale);
  }
};

struct Fp8E4m3 : Fp8<SmallFloat<4, 3, 0x7f, 0x7f>, 8> {
  static constexpr std::string_view kName = "fp8";
};
struct Fp8E5m2 : Fp8<SmallFloat<5, 2, 0x7c, 0x7e>, 15> {
  static constexpr std::string_view kName = "fp8_e5m2";
};

}  // namespace

std::unique_ptr<const Codec> make_fp32_codec() { return std::make_unique<BlockCodec<Fp32>>(); }
std::unique_ptr<const Codec> make_bf16_codec() { return std::make_unique<BlockCodec<Bf16>>(); }
std::unique_ptr<const Codec> make_fp16_codec() { return std::make_unique<BlockCodec<Fp16>>(); }
std::unique_ptr<const Codec> make_fp8_e4m3_codec() { return std::make_unique<BlockCodec<Fp8E4m3>>(); }
std::unique_ptr<const Codec> make_fp8_e5m2_codec() { return std::make_unique<BlockCodec<Fp8E5m2>>(); }

}  // namespace cairn::comm
