// Vectors of W floats with the compiler's vector extensions, and a way to compile one body for every vector width of a machine.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

// Every function is inlined into the entry point that carries the instruction set.
#define CAIRN_INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // about passing wide vectors between functions: none is ever passed, all are inlined

namespace cairn::kernels::simd {

template <int W>
struct Lanes {
  typedef float Float __attribute__((vector_size(4 * W)));
  typedef int32_t Int __attribute__((vector_size(4 * W)));
  typedef uint32_t Word __attribute__((vector_size(4 * W)));
};
template <int W>
using Float = typename Lanes<W>::Float;
template <int W>
using Int = typename Lanes<W>::Int;
template <int W>
using Word = typename Lanes<W>::Word;

template <int W>
CAIRN_INLINE Float<W> load(const float* from) {
  Float<W> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <int W>
CAIRN_INLINE void store(float* to, const Float<W>& v) {
  std::memcpy(to, &v, sizeof v);
}

template <int W>
CAIRN_INLINE Float<W> splat(float x) {
  return x - Float<W>{};  // x - 0 keeps every bit of x, the sign of -0 and nan included
}

// 0, 1, ..., W - 1.
template <int W>
CAIRN_INLINE Int<W> lane_indices() {
  return []<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) { return Int<W>{I...}; }
  (std::make_integer_sequence<int, W>{});
}

// a where the mask has all bits set, b where it has none.
template <int W>
CAIRN_INLINE Float<W> choose(const Int<W>& mask, const Float<W>& a, const Float<W>& b) {
#if defined(__aarch64__)  // one instruction; g++ 12 turns the other form round and pays five for the unordered case
  const Int<W> x = reinterpret_cast<Int<W>>(a), y = reinterpret_cast<Int<W>>(b);
  return reinterpret_cast<Float<W>>(((x ^ y) & mask) ^ y);
#else
  return mask ? a : b;
#endif
}

template <int W>
CAIRN_INLINE Float<W> maximum(const Float<W>& a, const Float<W>& b) {
  return a > b ? a : b;
}

// Sum and maximum over the lanes, by halves, so that the order is fixed for each width.
template <int W>
CAIRN_INLINE float sum(const Float<W>& v) {
  float lanes[W];
  store<W>(lanes, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <int W>
CAIRN_INLINE float maximum_lane(const Float<W>& v) {
  float lanes[W];
  store<W>(lanes, v);
  for (int i = 1; i < W; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

// 2^x to 2 units in the last place for x <= 127, 0 below -126 (-inf included), nan for nan. 2^x = 2^n 2^r with |r| <= 1/2; the polynomial
// is the minimax fit of 2^r (relative error 1.9e-9); n is read off the low bits after adding 1.5 * 2^23.
template <int W>
CAIRN_INLINE Float<W> exp2(const Float<W>& x) {
  const Float<W> magic = splat<W>(12582912.0f);
  const Float<W> low = splat<W>(-126.0f);
  const Int<W> below = x < low;
  const Float<W> y = choose<W>(below, low, x);
  const Float<W> shifted = y + magic;
  const Float<W> r = y - (shifted - magic);
  Float<W> p = splat<W>(1.534580212904737e-4f);
  p = p * r + 1.3399931139561978e-3f;
  p = p * r + 9.61848899382352e-3f;
  p = p * r + 5.55032877721317e-2f;
  p = p * r + 2.4022646890294902e-1f;
  p = p * r + 6.931472057371133e-1f;
  p = p * r + 1.0f;
  const Word<W> bits = reinterpret_cast<Word<W>>(p) + (reinterpret_cast<Word<W>>(shifted) << 23);
  const Float<W> result = reinterpret_cast<Float<W>>(bits);
  return choose<W>(below, Float<W>{}, result);
}

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// e^x, to the rounding of x log2(e): relative error about 1e-7 (1 + |x| / 2).
template <int W>
CAIRN_INLINE Float<W> exp(const Float<W>& x) {
  const Float<W> high = splat<W>(88.0f);
  return exp2<W>(choose<W>(x > high, high, x) * kLog2e);
}

// One butterfly stage of a transposition: swaps blocks of S lanes between rows a and b.
template <int W, int S>
CAIRN_INLINE void exchange(Float<W>& a, Float<W>& b) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    const Int<W> low = {((I & S) == 0 ? I : W + I - S)...};
    const Int<W> high = {((I & S) == 0 ? I + S : W + I)...};
    const Float<W> first = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
    a = first;
  }
  (std::make_integer_sequence<int, W>{});
}

// Transposes the W x W block held in rows[0 .. W-1].
template <int W, int S = 1>
CAIRN_INLINE void transpose(Float<W> (&rows)[W]) {
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    if ((i & S) == 0) exchange<W, S>(rows[i], rows[i + S]);
  if constexpr (2 * S < W) transpose<W, 2 * S>(rows);
}

// Runs Body::run<W>(arguments...) compiled for the widest vectors this processor has.
#if defined(__x86_64__)
template <class Body, class... A>
__attribute__((target("arch=x86-64-v4"))) void run_with_16(A... a) {
  Body::template run<16>(a...);
}
template <class Body, class... A>
__attribute__((target("arch=x86-64-v3"))) void run_with_8(A... a) {
  Body::template run<8>(a...);
}
#endif
template <class Body, class... A>
void run_with_4(A... a) {
  Body::template run<4>(a...);
}

// The number of floats in a vector of this machine: 16, 8 or 4.
inline int width() {
#if defined(__x86_64__)
  static const int lanes = __builtin_cpu_supports("x86-64-v4") ? 16 : __builtin_cpu_supports("x86-64-v3") ? 8 : 4;
  return lanes;
#else
  return 4;
#endif
}

template <class Body, class... A>
void run(A... a) {
#if defined(__x86_64__)
  if (width() == 16) return run_with_16<Body, A...>(a...);
  if (width() == 8) return run_with_8<Body, A...>(a...);
#endif
  run_with_4<Body, A...>(a...);
}

}  // namespace cairn::kernels::simd

#pragma GCC diagnostic pop
