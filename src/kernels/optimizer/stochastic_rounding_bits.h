// The rounding of one number, for the CPU and for a GPU.
#pragma once
#include <cstdint>

#include "base/random/philox.h"

namespace cairn::kernels {

// The upper half of fp32 `bits` after rounding. Adding a random number below 2^16 carries into the upper half with the odds of the lower
// half's share; infinities stay, and a NaN stays one whatever its lower half held.
CAIRN_HOST_DEVICE constexpr uint16_t round_bits(uint32_t bits, uint32_t random) {
  constexpr uint32_t kExponent = 0x7f800000, kLow = 0xffff;
  if ((bits & kExponent) != kExponent) return static_cast<uint16_t>((bits + (random & kLow)) >> 16);
  const bool is_nan = (bits & ~0x80000000u) > kExponent;
  return static_cast<uint16_t>((bits >> 16) | (is_nan ? 0x40u : 0u));
}

}  // namespace cairn::kernels
