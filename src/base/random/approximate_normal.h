#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random/philox.h"

namespace cairn::base {

// The numbers of box_muller() in single precision, with a bound on the error: box_muller's number lies between x (1 - e) and x (1 + e) with
// e = kApproximateNormalError. A GPU kernel that rounds to bf16 uses them (in little more than half the time) and computes the exact number
// only where the two ends of the interval round differently.
//
// With IEEE's operations the radius is within 2^-22.4 of its true value and cosine and sine within 2^-22.1 of theirs, relative to their
// sizes: seen for each of the 2^32 words (tests/base/approximate_normal_test.cpp looks at some). A GPU's own quotient (2^-22, of which the
// root leaves half) and root (2^-23) add up to 2^-22, the product, box_muller's rounding and that of a bound 2^-24 each: 2^-20.2 in all.
inline constexpr float kApproximateNormalError = 1.0f / (1 << 20);

struct ApproximatePair {
  float first, second;
};

namespace approximate {

CAIRN_HOST_DEVICE inline float from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
CAIRN_HOST_DEVICE inline uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
CAIRN_HOST_DEVICE inline float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}
CAIRN_HOST_DEVICE inline float root(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::sqrt(x);
#endif
}

}  // namespace approximate

// sqrt(-2 ln u) for u = (a + 1/2) / 2^32. Above sqrt(1/2) it is made of 1 - u, so that what is lost by rounding u is small beside ln u.
CAIRN_HOST_DEVICE inline float approximate_radius(uint32_t a) {
  const bool near_one = a >= 0xB504F334u;
  const float count = static_cast<float>(near_one ? ~a : a) + 0.5f;  // in 2^-32
  const uint32_t upper = 0x3FB504F3;                                 // sqrt(2)
  uint32_t mantissa = (approximate::bits_of(count) & 0x007FFFFFu) | 0x3F800000u;
  int powers = 32 + 127 - static_cast<int>(approximate::bits_of(count) >> 23);  // u = mantissa / 2^powers
  if (mantissa >= upper) mantissa -= 0x00800000u, powers -= 1;
  const float m = approximate::from_bits(mantissa), away = count * (1.0f / 4294967296.0f);
  // -ln u = powers ln 2 + 2 atanh(s)
  const float s = approximate::quotient(near_one ? away : 1.0f - m, near_one ? 2.0f - away : 1.0f + m);
  const float t = s * s;
  float sum = 0.1453f;  // 1/7, and what is left out makes up for
  sum = std::fma(sum, t, 1.0f / 5.0f);
  sum = std::fma(sum, t, 1.0f / 3.0f);
  sum = std::fma(sum * t, s, s);
  const float half = near_one ? sum : std::fma(static_cast<float>(powers), 0.34657359027997264f, sum);
  return 2.0f * approximate::root(half);
}

// Cosine and sine of 2 pi (k + 1/2) / 2^32, the quadrant cut off exactly as in portable_cos_sin().
CAIRN_HOST_DEVICE inline ApproximatePair approximate_cos_sin(uint32_t k) {
  const uint32_t quadrant = ((k >> 29) + 1) >> 1;                                                                    // 0 to 4
  const float x = (static_cast<float>(static_cast<int32_t>(k - (quadrant << 30))) + 0.5f) * 1.4629180792671596e-9f;  // 2 pi / 2^32
  const float t = x * x;
  float c = 1.0f / 40320.0f;
  c = std::fma(c, t, -1.0f / 720.0f);
  c = std::fma(c, t, 1.0f / 24.0f);
  c = std::fma(c, t, -0.5f);
  c = std::fma(c, t, 1.0f);
  float s = 1.0f / 362880.0f;
  s = std::fma(s, t, -1.0f / 5040.0f);
  s = std::fma(s, t, 1.0f / 120.0f);
  s = std::fma(s, t, -1.0f / 6.0f);
  s = std::fma(s * t, x, x);
  const bool swapped = (quadrant & 1) != 0;
  const uint32_t minus_cosine = ((quadrant + 1) & 2) << 30, minus_sine = (quadrant & 2) << 30;  // their sign bits
  return {approximate::from_bits(approximate::bits_of(swapped ? s : c) ^ minus_cosine),
          approximate::from_bits(approximate::bits_of(swapped ? c : s) ^ minus_sine)};
}

CAIRN_HOST_DEVICE inline ApproximatePair approximate_normal(uint32_t a, uint32_t b) {
  const float radius = approximate_radius(a);
  const ApproximatePair turn = approximate_cos_sin(b);
  return {radius * turn.first, radius * turn.second};
}

}  // namespace cairn::base
