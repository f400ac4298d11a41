#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace cairn::base {
struct Random;
}

namespace cairn::sync {

// How a slope (the directional derivative along a random direction) is encoded in a message.
enum class SlopeCode : uint8_t {
  log8,  // one byte: a sign and one of 127 sizes, exp((level - 64) / 8), 13.3 % apart: 3.8e-4 to 2.6e3; level 0 is zero
  fp32,  // four bytes, for comparison
  sign,  // one bit: -1 or 1
};
inline constexpr base::EnumName<SlopeCode> kSlopeCodeNames[] = {
    {SlopeCode::log8, "log8"}, {SlopeCode::fp32, "fp32"}, {SlopeCode::sign, "sign"}};

struct EncodedSlopes {
  std::vector<std::byte> bytes;
  int64_t clipped = 0;     // above the largest size
  int64_t not_finite = 0;  // sent as zero (sign: as 1)
};

// Rounds to the nearest size on a logarithmic scale; with `rounding`, randomly to one of the two neighbours, without bias.
EncodedSlopes encode_slopes(SlopeCode code, std::span<const float> slopes, const base::Random* rounding = nullptr);
// Bitwise identical on every machine.
std::vector<float> decode_slopes(SlopeCode code, std::span<const std::byte> bytes, int64_t count);
int64_t encoded_bytes(SlopeCode code, int64_t count);

}  // namespace cairn::sync
