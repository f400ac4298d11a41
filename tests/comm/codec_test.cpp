// Every codec against the definition of its format, computed in double.
#include "comm/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/error.h"

namespace cairn::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
int64_t size_of(const Floats& x) { return static_cast<int64_t>(x.size()); }

Bytes encoded(const Codec& codec, const Floats& x) {
  Bytes out(static_cast<size_t>(codec.encoded_bytes(size_of(x))));
  codec.encode(x.data(), size_of(x), out.data());
  return out;
}

Floats decoded(const Codec& codec, const Bytes& codes, int64_t count) {
  Floats out(static_cast<size_t>(count), -1.0f);
  codec.decode(codes.data(), count, out.data());
  return out;
}

Floats through(const Codec& codec, const Floats& x) { return decoded(codec, encoded(codec, x), size_of(x)); }

// Of 16-bit codecs.
Floats decoded(const Codec& codec, const std::vector<uint16_t>& codes) {
  Bytes bytes(codes.size() * 2);
  std::memcpy(bytes.data(), codes.data(), bytes.size());
  return decoded(codec, bytes, static_cast<int64_t>(codes.size()));
}

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

// Floats with every exponent, sign and mantissa as likely as any other; finite.
Floats any_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Floats x(count);
  for (float& value : x) {
    do value = float_of(random());
    while (!std::isfinite(value));
  }
  return x;
}

// Floats that differ by a factor of up to 2^span, around 2^middle.
Floats near_floats(size_t count, int middle, int span, uint32_t seed) {
  std::mt19937 random(seed);
  Floats x(count);
  for (float& value : x) {
    const int exponent = std::clamp(middle - span / 2 + static_cast<int>(random() % static_cast<uint32_t>(span + 1)), -126, 127);
    value = float_of((random() & 0x807fffff) | static_cast<uint32_t>(exponent + 127) << 23);
  }
  return x;
}

// A float format by its definition: the magnitudes of all finite codes, in order.
struct Format {
  std::vector<double> magnitudes;
  double end = 0;  // from here on nothing rounds to a finite code

  Format(int exponent_bits, int mantissa_bits, size_t codes) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (size_t code = 0; code < codes; ++code) {
      const int exponent = static_cast<int>(code) >> mantissa_bits;
      const double fraction = std::ldexp(static_cast<double>(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
      magnitudes.push_back(std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias));
    }
    end = magnitudes.back() + (magnitudes.back() - magnitudes[codes - 2]) / 2;
  }

  // The nearest one, ties to the even code; infinite where that is more than the format has.
  double nearest(double x) const {
    const double size = std::fabs(x);
    if (size >= end) return std::copysign(std::numeric_limits<double>::infinity(), x);
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), size);
    if (above == magnitudes.end()) return std::copysign(magnitudes.back(), x);
    if (above == magnitudes.begin()) return std::copysign(0.0, x);
    const double up = *above - size, down = size - *(above - 1);
    const bool even_above = (above - magnitudes.begin()) % 2 == 0;
    return std::copysign(up < down || (up == down && even_above) ? *above : *(above - 1), x);
  }

  // Each magnitude, each middle between two, and the floats next to them.
  Floats critical() const {
    Floats x;
    for (size_t i = 0; i + 1 < magnitudes.size(); ++i) {
      const auto here = static_cast<float>(magnitudes[i]), middle = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
      for (const float at : {here, middle}) {
        x.insert(x.end(), {at, -at, std::nextafter(at, kInfinite), std::nextafter(at, 0.0f)});
      }
    }
    return x;
  }
};

const Format& half() {
  static const Format format(5, 10, 0x7c00);
  return format;
}
const Format& brain() {
  static const Format format(8, 7, 0x7f80);
  return format;
}

struct Fp8Case {
  const char* name;
  Format format;
  int top_exponent;  // the largest value is 1.75 * 2^this
};
const std::vector<Fp8Case>& fp8_cases() {
  static const std::vector<Fp8Case> cases{{"fp8", Format(4, 3, 0x7f), 8}, {"fp8_e5m2", Format(5, 2, 0x7c), 15}};
  return cases;
}

TEST(Codec, IsFoundByNameAndOthersAreRefusedWithTheNearest) {
  for (const std::string& name : codec_names()) EXPECT_EQ(make_codec(name)->name(), name);
  const auto message = [](const char* name) {
    try {
      make_codec(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("fp8_e5m3"), "unknown codec \"fp8_e5m3\": did you mean \"fp8_e5m2\"?");
  EXPECT_EQ(message("int9"), "unknown codec \"int9\": did you mean \"int8\"?");
  EXPECT_EQ(message("zip"), "unknown codec \"zip\": known are fp32, bf16, fp16, fp8, fp8_e5m2, int8, e3m0");
}

TEST(Codec, TakesTheBytesItSays) {
  const auto bytes = [](const char* name, int64_t count) { return make_codec(name)->encoded_bytes(count); };
  for (const std::string& name : codec_names()) EXPECT_EQ(make_codec(name)->encoded_bytes(0), 0) << name;
  EXPECT_EQ(bytes("fp32", 7), 28);
  EXPECT_EQ(bytes("bf16", 7), 14);
  EXPECT_EQ(bytes("fp16", 7), 14);
  EXPECT_EQ(bytes("fp8", 1), 2);
  EXPECT_EQ(bytes("fp8", 128), 129);
  EXPECT_EQ(bytes("fp8_e5m2", 129), 131);
  EXPECT_EQ(bytes("int8", 256), 260);
  EXPECT_EQ(bytes("int8", 257), 265);
  EXPECT_EQ(bytes("e3m0", 1), 3);
  EXPECT_EQ(bytes("e3m0", 128), 66);
  EXPECT_EQ(bytes("e3m0", 131), 70);
}

TEST(Codec, Fp32ChangesNoBit) {
  Floats x = any_floats(1001, 1);
  x[3] = float_of(0x7fa12345), x[700] = -kInfinite, x[1000] = -0.0f;
  const Floats y = through(*make_codec("fp32"), x);
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * 4), 0);
}

TEST(Codec, DecodesEvery16BitCode) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  for (const auto& [name, format] : {std::pair("fp16", &half()), std::pair("bf16", &brain())}) {
    const Floats y = decoded(*make_codec(name), codes);
    const size_t finite = format->magnitudes.size();
    for (size_t code = 0; code < 65536; ++code) {
      const size_t size = code & 0x7fff;
      const double expected = size < finite ? format->magnitudes[size] : size == finite ? kInfinite : kNan;
      ASSERT_TRUE(same(y[code], static_cast<float>(code < 32768 ? expected : -expected))) << name << " code " << code;
    }
  }
}

TEST(Codec, RoundsTo16BitsAsTheDefinitionSays) {
  for (const auto& [name, format] : {std::pair("fp16", &half()), std::pair("bf16", &brain())}) {
    for (const Floats& x : {any_floats(30'011, 2), near_floats(30'011, -8, 40, 3), format->critical()}) {
      const Floats y = through(*make_codec(name), x);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(same(y[i], static_cast<float>(format->nearest(x[i])))) << name << " of " << x[i] << " is " << y[i];
      }
    }
  }
}

TEST(Codec, SixteenBitsKeepTheErrorBound) {
  for (const auto& [name, relative, absolute] : {std::tuple("bf16", 0x1p-8, 0.0), std::tuple("fp16", 0x1p-11, 0x1p-25)}) {
    const Floats x = near_floats(10'007, -5, 38, 20), y = through(*make_codec(name), x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_LE(std::fabs(double{y[i]} - x[i]), std::max(std::fabs(x[i]) * relative, absolute)) << name << " of " << x[i];
    }
  }
}

TEST(Codec, SixteenBitsKeepWhatIsNotFinite) {
  for (const char* name : {"fp16", "bf16"}) {
    const Floats y = through(*make_codec(name), {kInfinite, -kInfinite, kNan, float_of(0x7f800001), float_of(0xff800001), -0.0f});
    EXPECT_EQ(y[0], kInfinite);
    EXPECT_EQ(y[1], -kInfinite);
    for (const size_t i : {2, 3, 4}) EXPECT_TRUE(std::isnan(y[i])) << name << i;
    EXPECT_EQ(bits_of(y[5]), 0x80000000u);
  }
  EXPECT_EQ(through(*make_codec("fp16"), {65519.996f, 65520.0f, -65520.0f, 3e38f}), (Floats{65504.0f, kInfinite, -kInfinite, kInfinite}));
}

TEST(Codec, DecodesEvery8BitFloatAtEveryScale) {
  for (const Fp8Case& fp8 : fp8_cases()) {
    const auto codec = make_codec(fp8.name);
    for (int exponent = 1; exponent <= 254 - fp8.top_exponent - 1; ++exponent) {
      Bytes bytes;
      for (int code = 0; code < 256; ++code) {
        if (code % 128 == 0) bytes.push_back(static_cast<std::byte>(exponent));
        bytes.push_back(static_cast<std::byte>(code));
      }
      const Floats y = decoded(*codec, bytes, 256);
      for (size_t code = 0; code < 256; ++code) {
        const size_t size = code & 127, finite = fp8.format.magnitudes.size();
        const bool infinite = size == finite && size < 127;  // e4m3 has none
        const double expected = size < finite ? std::ldexp(fp8.format.magnitudes[size], exponent - 127) : infinite ? kInfinite : kNan;
        ASSERT_TRUE(same(y[code], static_cast<float>(code < 128 ? expected : -expected))) << fp8.name << " code " << code;
      }
    }
  }
}

// Each block by itself: the least power of two that makes it fit, then the nearest value of the format.
void expect_fp8(const Fp8Case& fp8, const Floats& x) {
  const Floats y = through(*make_codec(fp8.name), x);
  for (size_t first = 0; first < x.size(); first += 128) {
    const size_t last = std::min(first + 128, x.size());
    double largest = 0;
    for (size_t i = first; i < last; ++i) largest = std::max(largest, std::isfinite(x[i]) ? std::fabs(double{x[i]}) : 0.0);
    int scale = -126;
    while (std::ldexp(largest, -scale) > fp8.format.magnitudes.back()) ++scale;
    for (size_t i = first; i < last; ++i) {
      if (!std::isfinite(x[i])) continue;
      const double expected = std::ldexp(fp8.format.nearest(std::ldexp(double{x[i]}, -scale)), scale);
      ASSERT_TRUE(same(y[i], static_cast<float>(expected))) << fp8.name << " of " << x[i] << " is " << y[i] << ", scale 2^" << scale;
    }
  }
}

TEST(Codec, RoundsTo8BitFloatsAsTheDefinitionSays) {
  for (const Fp8Case& fp8 : fp8_cases()) {
    expect_fp8(fp8, any_floats(10'007, 4));
    expect_fp8(fp8, near_floats(100'003, -8, 20, 5));
    expect_fp8(fp8, near_floats(10'007, -120, 40, 6));
    expect_fp8(fp8, Floats(300, 0.0f));
    expect_fp8(fp8, {std::numeric_limits<float>::max(), 1.0f, std::numeric_limits<float>::denorm_min()});
    expect_fp8(fp8, {std::numeric_limits<float>::denorm_min(), -1e-44f});
    Floats critical;  // in blocks that hold the largest value, so that the scale is 1
    for (const float value : fp8.format.critical()) {
      if (critical.size() % 128 == 0) critical.push_back(static_cast<float>(fp8.format.magnitudes.back()));
      critical.push_back(value);
    }
    expect_fp8(fp8, critical);
    for (float& value : critical) value *= -0x1.8p-30f;
    expect_fp8(fp8, critical);
  }
}

TEST(Codec, EightBitFloatsKeepTheErrorBound) {
  for (const auto& [name, relative, absolute] : {std::tuple("fp8", 0x1p-4, 0x1p-17), std::tuple("fp8_e5m2", 0x1p-3, 0x1p-31)}) {
    const Floats x = near_floats(12'800, -8, 30, 7), y = through(*make_codec(name), x);
    for (size_t i = 0; i < x.size(); ++i) {
      double largest = 0;
      for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128; ++j) largest = std::max(largest, std::fabs(double{x[j]}));
      ASSERT_LE(std::fabs(double{y[i]} - x[i]), std::max(std::fabs(x[i]) * relative, largest * absolute)) << name << " of " << x[i];
    }
  }
}

TEST(Codec, EightBitFloatsKeepWhatIsNotFiniteAndItsNeighbours) {
  const Floats x{1.0f, kNan, 2.0f, kInfinite, -3.0f, -kInfinite, float_of(0xff800001)};
  for (const Fp8Case& fp8 : fp8_cases()) {
    expect_fp8(fp8, x);
    const Floats y = through(*make_codec(fp8.name), x);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[2], 2.0f);
    EXPECT_EQ(y[4], -3.0f);
    EXPECT_TRUE(std::isnan(y[1]) && std::isnan(y[6]));
  }
  EXPECT_TRUE(std::isnan(through(*make_codec("fp8"), x)[3]));  // e4m3 has no infinity
  EXPECT_EQ(through(*make_codec("fp8_e5m2"), x)[3], kInfinite);
  EXPECT_EQ(through(*make_codec("fp8_e5m2"), x)[5], -kInfinite);
}

// The scale is the largest / 127 with 17 bits, a code the nearest whole number to x * (1 / scale), all roundings those of float.
void expect_int8(const Floats& x) {
  const auto codec = make_codec("int8");
  const Bytes codes = encoded(*codec, x);
  const Floats y = decoded(*codec, codes, size_of(x));
  for (size_t first = 0; first < x.size(); first += 256) {
    const size_t last = std::min(first + 256, x.size());
    double largest = 0;
    for (size_t i = first; i < last; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
    if (largest < 0x1p-119) {
      for (size_t i = first; i < last; ++i) ASSERT_EQ(y[i], 0.0f) << x[i];
      continue;
    }
    const double share = static_cast<float>(largest / 127.0);
    const int exponent = std::ilogb(share);
    const double scale = std::ldexp(std::floor(std::ldexp(share, 16 - exponent) + 0.5), exponent - 16);
    const double inverse = static_cast<float>(1.0 / scale);
    for (size_t i = first; i < last; ++i) {
      const double code = std::nearbyint(static_cast<double>(static_cast<float>(x[i] * inverse)));
      ASSERT_EQ(static_cast<int>(std::to_integer<int8_t>(codes[i + (first / 256 + 1) * 4])), code) << x[i];
      ASSERT_EQ(double{y[i]}, code * scale) << x[i];  // exact, as no float product would be by chance
      ASSERT_LE(std::fabs(double{y[i]} - x[i]), largest / 253.9) << x[i];
    }
  }
}

TEST(Codec, Int8RoundsToTheNearestMultipleOfTheBlocksScale) {
  expect_int8(near_floats(100'003, -8, 12, 8));
  expect_int8(near_floats(100'003, -8, 1, 9));
  expect_int8(any_floats(10'007, 10));
  expect_int8(near_floats(10'007, -118, 10, 11));
  Floats ties;  // scale 1: the middles between whole numbers, to the even one
  for (int i = -127; i < 127; ++i) ties.push_back(static_cast<float>(i) + 0.5f);
  ties.push_back(127.0f);
  expect_int8(ties);
  EXPECT_EQ(through(*make_codec("int8"), {127.0f, 0.5f, 1.5f, -2.5f, -3.5f}), (Floats{127.0f, 0.0f, 2.0f, -2.0f, -4.0f}));
  expect_int8({std::numeric_limits<float>::max(), -1e37f});
}

TEST(Codec, Int8KeepsZeroBlocksAndDropsTheTiniest) {
  EXPECT_EQ(through(*make_codec("int8"), Floats(300, 0.0f)), Floats(300, 0.0f));
  EXPECT_EQ(through(*make_codec("int8"), {0x1p-120f, -0x1p-140f}), (Floats{0.0f, 0.0f}));
  EXPECT_NE(through(*make_codec("int8"), {0x1p-119f})[0], 0.0f);
}

TEST(Codec, Int8MakesABlockNanWhereOneValueIsNotFinite) {
  for (const float bad : {kNan, kInfinite, -kInfinite, float_of(0xff800001)}) {
    Floats x(600, 1.0f);
    x[300] = bad;
    const Floats y = through(*make_codec("int8"), x);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i >= 256 && i < 512) << i;
    EXPECT_EQ(y[0], y[599]);
  }
}

// By the definition: the block's largest as bf16, times the power of two that is nearest in the logarithm, or nothing.
double e3m0_of(double x, double largest) {
  const auto scale = static_cast<double>(
      float_of((bits_of(static_cast<float>(largest)) + 0x7fff + (bits_of(static_cast<float>(largest)) >> 16 & 1)) & 0xffff0000));
  if (largest < 0x1p-110 || std::fabs(x) < scale * std::exp2(-6.5)) return 0;
  return std::copysign(scale * std::exp2(std::min(0.0, std::round(std::log2(std::fabs(x) / scale)))), x);
}

TEST(Codec, E3m0RoundsToTheNearestPowerOfTwoBelowTheBlocksLargest) {
  const auto codec = make_codec("e3m0");
  for (const Floats& x : {near_floats(50'021, -8, 3, 21), near_floats(50'021, 20, 12, 22), near_floats(1000, -105, 20, 23)}) {
    const Floats y = through(*codec, x);
    for (size_t begin = 0; begin < x.size(); begin += 128) {
      const size_t end = std::min(x.size(), begin + 128);
      double largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
      for (size_t i = begin; i < end; ++i) {
        const double expected = e3m0_of(x[i], largest), ratio = std::log2(std::fabs(x[i]) / largest);
        // Just between two codes either will do.
        if (std::fabs(ratio - std::floor(ratio) - 0.5) < 0.01) continue;
        ASSERT_EQ(y[i], static_cast<float>(expected)) << x[i] << " in a block up to " << largest;
        if (largest > 0x1p-100) {
          ASSERT_LE(std::fabs(y[i] - x[i]), std::max(0.4215 * std::fabs(x[i]), largest * std::exp2(-6.49))) << x[i];
        }
      }
    }
  }
}

TEST(Codec, E3m0KeepsZeroBlocksAndMakesABlockNanWhereOneValueIsNotFinite) {
  const auto codec = make_codec("e3m0");
  EXPECT_EQ(through(*codec, Floats(200, 0.0f)), Floats(200, 0.0f));
  EXPECT_EQ(through(*codec, Floats(200, 0x1p-120f)), Floats(200, 0.0f));
  for (const float bad : {kNan, kInfinite, -kInfinite}) {
    Floats x(300, 2.0f);
    x[130] = bad;
    const Floats y = through(*codec, x);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i >= 128 && i < 256) << i;
  }
  const Floats most(5, std::numeric_limits<float>::max());
  for (const float y : through(*codec, most)) EXPECT_TRUE(std::isfinite(y));
}

TEST(Codec, WhatWasDecodedGoesThroughUnchanged) {
  for (const std::string& name : codec_names()) {
    const auto codec = make_codec(name);
    for (const Floats& x : {any_floats(5003, 12), near_floats(50'021, -8, 12, 13), near_floats(50'021, -110, 40, 14)}) {
      const Floats once = through(*codec, x), twice = through(*codec, once);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_TRUE(std::isfinite(once[i]) ? same(once[i], twice[i]) : !std::isfinite(twice[i])) << name << " of " << x[i] << " at " << i;
    }
  }
}

// At every size around a block and a run; codes at odd addresses; nothing written past the end.
TEST(Codec, CodesOfPiecesInARowAreTheCodeOfTheWhole) {
  for (const std::string& name : codec_names()) {
    const auto codec = make_codec(name);
    for (const int64_t count : {1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1031}) {
      const Floats x = near_floats(static_cast<size_t>(count), 3, 9, 15);
      const Bytes whole = encoded(*codec, x);
      const Floats y = decoded(*codec, whole, count);
      const int64_t cut = count / 2 / codec->block() * codec->block(), bytes = codec->encoded_bytes(cut);
      Bytes pieces(whole.size() + 2, std::byte{0x5a});
      codec->encode(x.data(), cut, pieces.data() + 1);
      codec->encode(x.data() + cut, count - cut, pieces.data() + 1 + bytes);
      ASSERT_EQ(Bytes(pieces.begin() + 1, pieces.end() - 1), whole) << name << " " << count;
      ASSERT_TRUE(pieces.front() == std::byte{0x5a} && pieces.back() == std::byte{0x5a}) << name << " " << count;
      Floats again(static_cast<size_t>(count) + 1, 9.0f);
      codec->decode(pieces.data() + 1, cut, again.data());
      codec->decode(pieces.data() + 1 + bytes, count - cut, again.data() + cut);
      ASSERT_EQ(Floats(again.begin(), again.end() - 1), y) << name << " " << count;
      ASSERT_EQ(again.back(), 9.0f);
    }
  }
}

TEST(Codec, DecodeAddAddsWhatDecodeGives) {
  for (const std::string& name : codec_names()) {
    const auto codec = make_codec(name);
    for (const int64_t count : {0, 1, 130, 1031}) {
      const Floats x = near_floats(static_cast<size_t>(count), 3, 9, 16), base = near_floats(static_cast<size_t>(count) + 1, 3, 9, 17);
      const Bytes codes = encoded(*codec, x);
      const Floats y = decoded(*codec, codes, count);
      Floats sum = base;
      codec->decode_add(codes.data(), count, sum.data());
      for (size_t i = 0; i < y.size(); ++i) {
        const float expected = base[i] + y[i];
        ASSERT_EQ(bits_of(sum[i]), bits_of(expected)) << name << " at " << i;
      }
      ASSERT_EQ(sum.back(), base.back());
    }
  }
}

// Checksums recorded once: other processors, compilers and vector widths must give the same bytes and the same floats.
TEST(Codec, IsBitwiseIdenticalOnEveryMachine) {
  const Floats any = any_floats(10'007, 18), near = near_floats(10'007, -8, 12, 19);
  const auto checksum = [](const std::string& name, const Floats& x) {
    const auto codec = make_codec(name);
    const Bytes codes = encoded(*codec, x);
    Floats sum = x;
    codec->decode_add(codes.data(), size_of(x), sum.data());
    base::Checksum all;
    all.add(codes);
    all.add(std::as_bytes(std::span<const float>(decoded(*codec, codes, size_of(x)))));
    all.add(std::as_bytes(std::span(sum)));
    return all.value();
  };
  struct Recorded {
    const char* name;
    uint64_t any, near;
  };
  const std::vector<Recorded> recorded{
      {"fp32", 4550378216503875421u, 18047855690195306619u},    {"bf16", 6664084852195101104u, 13402234589711828688u},
      {"fp16", 15025676488454321460u, 10536684080130013750u},   {"fp8", 17063434432664474724u, 12925661826181955693u},
      {"fp8_e5m2", 5836442113569494218u, 6273114927562852277u}, {"int8", 9695561505861901118u, 14775675510912973807u},
      {"e3m0", 15585591493441387938u, 6625351972731388199u}};
  for (const Recorded& one : recorded) {
    EXPECT_EQ(checksum(one.name, any), one.any) << one.name;
    EXPECT_EQ(checksum(one.name, near), one.near) << one.name;
  }
}

}  // namespace
}  // namespace cairn::comm
