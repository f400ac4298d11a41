// Byte shuffles for codes of a byte and less. Compilers narrow words to bytes step by step; a machine that picks every other byte of two
// vectors in one instruction does better.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace cairn::comm {

// Whether this machine has such shuffles for vectors of W floats. Otherwise codecs leave it to the compiler.
#if defined(__aarch64__)
template <int W>
inline constexpr bool kPicksBytes = W == 4;
#else
template <int W>
inline constexpr bool kPicksBytes = false;
#endif

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
using Words4 = kernels::simd::Word<4>;
using Floats4 = kernels::simd::Float<4>;

template <class V>
CAIRN_INLINE V load16(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

CAIRN_INLINE Bytes16 even_bytes(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
}
CAIRN_INLINE Bytes16 odd_bytes(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31});
}
// Interleaves the bytes of the first halves, and of the second halves, of a and b.
CAIRN_INLINE Bytes16 first_in_turn(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
CAIRN_INLINE Bytes16 second_in_turn(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

// The same with pairs of bytes.
CAIRN_INLINE Bytes16 first_pairs_in_turn(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23});
}
CAIRN_INLINE Bytes16 second_pairs_in_turn(Bytes16 a, Bytes16 b) {
  return __builtin_shuffle(a, b, Bytes16{8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31});
}

// The lowest and the highest byte of each of sixteen words.
CAIRN_INLINE Bytes16 low_bytes(const Words4 (&w)[4]) {
  const auto bytes = [&](int i) __attribute__((always_inline)) { return reinterpret_cast<Bytes16>(w[i]); };
  return even_bytes(even_bytes(bytes(0), bytes(1)), even_bytes(bytes(2), bytes(3)));
}
CAIRN_INLINE Bytes16 high_bytes(const Words4 (&w)[4]) {
  const auto bytes = [&](int i) __attribute__((always_inline)) { return reinterpret_cast<Bytes16>(w[i]); };
  return odd_bytes(odd_bytes(bytes(0), bytes(1)), odd_bytes(bytes(2), bytes(3)));
}

}  // namespace cairn::comm
