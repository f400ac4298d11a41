#include "sync/one_byte/code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/random.h"

namespace cairn::sync {
namespace {

constexpr int kLevels = 128;

// exp((level - 64) / 8) as a product of two constants, rounded once: independent of the machine's math library.
double size_of(int level) {
  static constexpr std::array<double, 16> kWhole = {0.00033546262790251185, 0.0009118819655545162, 0.0024787521766663585,
                                                    0.006737946999085467,   0.01831563888873418,   0.049787068367863944,
                                                    0.1353352832366127,     0.36787944117144233,   1.0,
                                                    2.718281828459045,      7.38905609893065,      20.085536923187668,
                                                    54.598150033144236,     148.4131591025766,     403.4287934927351,
                                                    1096.6331584284585};
  static constexpr std::array<double, 8> kEighths = {1.0,
                                                     1.1331484530668263,
                                                     1.2840254166877414,
                                                     1.4549914146182013,
                                                     1.6487212707001282,
                                                     1.8682459574322223,
                                                     2.117000016612675,
                                                     2.398875293967098};
  return kWhole[static_cast<size_t>(level / 8)] * kEighths[static_cast<size_t>(level % 8)];
}

constexpr double kHalfStepDown = 0.9394130628134758;  // exp(-1/16)

// The largest level whose size times `factor` is at most this; 0: none.
int level_below(double magnitude, double factor) {
  int low = 0, high = kLevels - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (size_of(middle) * factor <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int unbiased_level(double magnitude, double chance) {
  const int level = level_below(magnitude, 1);
  if (level == kLevels - 1) return level;
  const double low = level == 0 ? 0 : size_of(level), high = size_of(level + 1);
  return chance < (magnitude - low) / (high - low) ? level + 1 : level;
}

}  // namespace

int64_t encoded_bytes(SlopeCode code, int64_t count) {
  switch (code) {
    case SlopeCode::log8:
      return count;
    case SlopeCode::fp32:
      return 4 * count;
    case SlopeCode::sign:
      return (count + 7) / 8;
  }
  CAIRN_CHECK(false, "code {}", static_cast<int>(code));
}

EncodedSlopes encode_slopes(SlopeCode code, std::span<const float> slopes, const base::Random* rounding) {
  EncodedSlopes encoded;
  encoded.bytes.resize(static_cast<size_t>(encoded_bytes(code, static_cast<int64_t>(slopes.size()))));
  for (size_t i = 0; i < slopes.size(); ++i) {
    const bool finite = std::isfinite(slopes[i]);
    const float slope = finite ? slopes[i] : 0.0f;
    if (!finite) ++encoded.not_finite;
    if (code == SlopeCode::fp32) {
      std::memcpy(encoded.bytes.data() + 4 * i, &slope, 4);
    } else if (code == SlopeCode::sign) {
      if (std::signbit(slope)) encoded.bytes[i / 8] |= static_cast<std::byte>(1 << (i % 8));
    } else {
      const double magnitude = std::abs(static_cast<double>(slope));
      if (magnitude > size_of(kLevels - 1) / kHalfStepDown) ++encoded.clipped;
      const int level = rounding ? unbiased_level(magnitude, rounding->uniform(i)) : level_below(magnitude, kHalfStepDown);
      encoded.bytes[i] = static_cast<std::byte>(level | (std::signbit(slope) && level > 0 ? 128 : 0));
    }
  }
  return encoded;
}

std::vector<float> decode_slopes(SlopeCode code, std::span<const std::byte> bytes, int64_t count) {
  CAIRN_CHECK(static_cast<int64_t>(bytes.size()) == encoded_bytes(code, count), "{} bytes for {} slopes", bytes.size(), count);
  std::vector<float> slopes(static_cast<size_t>(count));
  for (size_t i = 0; i < slopes.size(); ++i) {
    if (code == SlopeCode::fp32) {
      std::memcpy(&slopes[i], bytes.data() + 4 * i, 4);
    } else if (code == SlopeCode::sign) {
      slopes[i] = (std::to_integer<int>(bytes[i / 8]) >> (i % 8) & 1) != 0 ? -1.0f : 1.0f;
    } else {
      const int level = std::to_integer<int>(bytes[i]) & 127;
      const float size = level == 0 ? 0.0f : static_cast<float>(size_of(level));
      slopes[i] = std::to_integer<int>(bytes[i]) >= 128 ? -size : size;
    }
  }
  return slopes;
}

}  // namespace cairn::sync
