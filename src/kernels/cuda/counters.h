// Loops of CUDA kernels over elements with random numbers. One Philox counter gives four words, one for each of four adjacent elements. An
// array may begin in the middle of a counter's four. For .cu files.
#pragma once
#include <type_traits>

#include "base/random/philox.h"
#include "kernels/cuda/pack.h"

namespace cairn::kernels::device {

constexpr int kCounterThreads = 256;
constexpr int kCounterBlocksMax = 132 * 16;  // as for AdamW

inline unsigned blocks_for_counters(int64_t count) {
  const int64_t wanted = (count / 4 + 2 + kCounterThreads - 1) / kCounterThreads;
  return static_cast<unsigned>(wanted < kCounterBlocksMax ? wanted : kCounterBlocksMax);
}

// Calls use(counter, begin) over elements first .. first+count-1; the counter belongs to elements begin .. begin+3 of the array.
template <class Use>
__device__ void over_counters(int64_t first, int64_t count, const Use& use) {
  const int64_t first_counter = first / 4, counters = (first + count + 3) / 4 - first_counter;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kCounterThreads + threadIdx.x; at < counters;
       at += static_cast<int64_t>(gridDim.x) * kCounterThreads) {
    const int64_t counter = first_counter + at;
    use(static_cast<uint64_t>(counter), counter * 4 - first);
  }
}

// An array that is read and written by fours: vectorized where all four are inside and aligned, else the elements that are inside.
template <class T>
struct Fours {
  using Packed = Pack<std::remove_const_t<T>, 4>;
  T* array;
  int64_t count;
  bool aligned;  // for each four that is inside

  __device__ Fours(T* array, int64_t first, int64_t count)
      : array(array), count(count), aligned(first % 4 == 0 && reinterpret_cast<uintptr_t>(array) % (4 * sizeof(T)) == 0) {}

  __device__ bool together(int64_t begin) const { return aligned && begin + 4 <= count; }
  __device__ bool inside(int64_t at) const { return at >= 0 && at < count; }

  __device__ Packed load(int64_t begin) const {
    if (together(begin)) return Packed::load(array + begin);
    Packed four = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (inside(begin + i)) four.at[i] = array[begin + i];
    return four;
  }
  __device__ void store(int64_t begin, const Packed& four) const {
    if (together(begin)) return four.store(array + begin);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (inside(begin + i)) array[begin + i] = four.at[i];
  }
};

}  // namespace cairn::kernels::device
