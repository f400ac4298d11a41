// Normal numbers in CUDA kernels, four of one counter at a time. For .cu files, which need -fmad=false (box_muller.h).
#pragma once
#include "base/random/approximate_normal.h"
#include "base/random/box_muller.h"
#include "kernels/cuda/counters.h"

namespace cairn::kernels::device {

struct Four {
  float at[4];
};

// Bitwise identical to base::Random::normal.
__device__ inline Four normals(const base::Words4& words) {
  const base::NormalPair one = base::box_muller(words.word[0], words.word[1]), two = base::box_muller(words.word[2], words.word[3]);
  return {{one.first, one.second, two.first, two.second}};
}

// Bounds of four numbers; either may be the larger.
struct Bounds {
  Four one, other;
};

__device__ inline Bounds bounds_of_normals(const base::Words4& words) {
  const base::ApproximatePair a = base::approximate_normal(words.word[0], words.word[1]),
                              b = base::approximate_normal(words.word[2], words.word[3]);
  const float quick[4] = {a.first, a.second, b.first, b.second};
  Bounds bounds;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bounds.one.at[i] = quick[i] * (1 - base::kApproximateNormalError);
    bounds.other.at[i] = quick[i] * (1 + base::kApproximateNormalError);
  }
  return bounds;
}

// rounded(exact numbers), for a function `rounded` that is monotonic in each number. In bf16 both bounds nearly always round to the same
// values, and then so do the exact numbers; only otherwise these are computed, in double precision.
template <class T, class Quick, class Exact, class Rounded>
__device__ Pack<T, 4> rounded_exactly(const Quick& quick, const Exact& exact, const Rounded& rounded) {
  if constexpr (sizeof(T) == 2) {
    const Bounds bounds = quick();
    const Pack<T, 4> one = rounded(bounds.one), other = rounded(bounds.other);
    uint2 bits, others;
    memcpy(&bits, one.at, sizeof bits);
    memcpy(&others, other.at, sizeof others);
    if (bits.x == others.x && bits.y == others.y) return one;
  }
  return rounded(exact());
}

}  // namespace cairn::kernels::device
