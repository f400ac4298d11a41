#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random/philox.h"

namespace cairn::base {

// Two independent standard normal numbers from 64 random bits (Box and Muller 1958).
//
// u, v uniform in (0, 1):  (sqrt(-2 ln u) cos 2 pi v, sqrt(-2 ln u) sin 2 pi v).
//
// Bitwise identical everywhere: the logarithm, sine and cosine are the polynomials below, made of IEEE double additions, multiplications,
// divisions and one square root, all correctly rounded on every machine. What must not happen is contraction of a*b+c into one
// rounding: this room is compiled with -ffp-contract=off, and nvcc needs -fmad=false for a file that includes this. The result is within 1
// unit in the last place of float; its largest size is 6.77 (from the smallest uniform number, 2^-33).
struct NormalPair {
  float first, second;
};

// Natural logarithm of x in (0, 1]: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1)).
CAIRN_HOST_DEVICE inline double portable_log(double x) {
#ifdef __CUDA_ARCH__
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(x));
#else
  const uint64_t bits = std::bit_cast<uint64_t>(x);
#endif
  int exponent = static_cast<int>(bits >> 52) - 1023;
  uint64_t mantissa_bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  const bool upper = mantissa_bits >= 0x3FF6A09E667F3BCDull;  // sqrt(2)
  if (upper) {
    mantissa_bits -= 0x0010000000000000ull;
    exponent += 1;
  }
#ifdef __CUDA_ARCH__
  const double m = __longlong_as_double(static_cast<long long>(mantissa_bits));
#else
  const double m = std::bit_cast<double>(mantissa_bits);
#endif
  const double s = (m - 1.0) / (m + 1.0);  // |s| <= 0.1716: the first term left out is below 4e-17
  const double t = s * s;
  double sum = 1.0 / 21.0;
  sum = sum * t + 1.0 / 19.0;
  sum = sum * t + 1.0 / 17.0;
  sum = sum * t + 1.0 / 15.0;
  sum = sum * t + 1.0 / 13.0;
  sum = sum * t + 1.0 / 11.0;
  sum = sum * t + 1.0 / 9.0;
  sum = sum * t + 1.0 / 7.0;
  sum = sum * t + 1.0 / 5.0;
  sum = sum * t + 1.0 / 3.0;
  sum = sum * t + 1.0;
  return exponent * 0.693147180559945309417 + 2.0 * s * sum;
}

// Cosine and sine of 2 pi turn, for turn = (k + 1/2) / 2^32: the quadrant is cut off exactly, Taylor series do the rest.
CAIRN_HOST_DEVICE inline void portable_cos_sin(uint32_t k, double& cosine, double& sine) {
  const uint32_t eighth = k >> 29;
  const uint32_t quadrant = ((eighth + 1) >> 1) & 3;  // the nearest multiple of a quarter turn
  const double turn = (static_cast<double>(k) + 0.5) * (1.0 / 4294967296.0) - 0.25 * static_cast<double>((eighth + 1) >> 1);
  const double x = turn * 6.28318530717958647692;  // |x| <= pi/4
  const double t = x * x;
  double c = 1.0 / 20922789888000.0;  // 1/16!
  c = c * t - 1.0 / 87178291200.0;
  c = c * t + 1.0 / 479001600.0;
  c = c * t - 1.0 / 3628800.0;
  c = c * t + 1.0 / 40320.0;
  c = c * t - 1.0 / 720.0;
  c = c * t + 1.0 / 24.0;
  c = c * t - 0.5;
  c = c * t + 1.0;
  double s = -1.0 / 1307674368000.0;  // 1/15!
  s = s * t + 1.0 / 6227020800.0;
  s = s * t - 1.0 / 39916800.0;
  s = s * t + 1.0 / 362880.0;
  s = s * t - 1.0 / 5040.0;
  s = s * t + 1.0 / 120.0;
  s = s * t - 1.0 / 6.0;
  s = s * t + 1.0;
  s = s * x;
  const bool swapped = (quadrant & 1) != 0;
  const double a = swapped ? s : c;
  const double b = swapped ? c : s;
  cosine = (quadrant == 1 || quadrant == 2) ? -a : a;
  sine = quadrant >= 2 ? -b : b;
}

CAIRN_HOST_DEVICE inline NormalPair box_muller(uint32_t a, uint32_t b) {
  const double uniform = (static_cast<double>(a) + 0.5) * (1.0 / 4294967296.0);  // never 0, never 1
  const double radius = std::sqrt(-2.0 * portable_log(uniform));
  double cosine = 0, sine = 0;
  portable_cos_sin(b, cosine, sine);
  return {static_cast<float>(radius * cosine), static_cast<float>(radius * sine)};
}

}  // namespace cairn::base
