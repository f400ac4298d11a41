// How CUDA kernels read and write: neighbours together, sixteen bytes at a time where they are aligned, and as floats once they are in
// registers. For .cu files.
#pragma once
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"

namespace cairn::kernels::device {

using bf16 = __nv_bfloat16;

constexpr int kPackBytes = 16;  // the widest access of a thread
template <class T>
constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));  // elements in it

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0; }  // null is

// N neighbours as they lie in memory, rounded already: half the registers of floats where T is bf16.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];

  __device__ static Pack load(const T* from) { return *reinterpret_cast<const Pack*>(from); }
  // To the memory of the device. Sixteen and eight bytes by an instruction that is named: of an assignment the compiler makes a store for
  // each element where it likes, which made a kernel take five times as long.
  __device__ void store(T* to) const {
    if constexpr (sizeof(Pack) == kPackBytes) {
      uint4 bits;
      memcpy(&bits, at, sizeof bits);
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w) : "memory");
    } else if constexpr (sizeof(Pack) == kPackBytes / 2) {
      uint2 bits;
      memcpy(&bits, at, sizeof bits);
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(bits.x), "r"(bits.y) : "memory");
    } else {
      *reinterpret_cast<Pack*>(to) = *this;
    }
  }

  __device__ float operator[](int i) const { return static_cast<float>(at[i]); }

  // Rounded to nearest, once. Two at a time where there are two: that is one instruction.
  __device__ static Pack of(const float (&values)[N]) {
    Pack result;
    if constexpr (sizeof(T) == 4) {
      for (int i = 0; i < N; ++i) result.at[i] = values[i];
    } else if constexpr (N == 1) {
      result.at[0] = __float2bfloat16_rn(values[0]);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(values[i], values[i + 1]);
        result.at[i] = two.x, result.at[i + 1] = two.y;
      }
    }
    return result;
  }
};

// The largest magnitude of what a thread wrote, noted in one of several words for all threads: the bits of a float, of which those that
// are not finite are larger than all others. For bf16; of fp32 nothing is noted.
template <class T>
struct Amax {
  unsigned two = 0;  // bf16 without their signs, which are ordered like unsigned numbers

  template <int N>
  __device__ void update(const Pack<T, N>& pack) {
    if constexpr (sizeof(T) == 2 && N == 1) {
      two = __vmaxu2(two, __bfloat16_as_ushort(pack.at[0]) & 0x7fffU);
    } else if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < N; i += 2) two = __vmaxu2(two, *reinterpret_cast<const unsigned*>(pack.at + i) & 0x7fff7fffU);
    }
  }
  // All threads of a warp call it. A word is written to only where it is less, so that few have to wait for it.
  __device__ void record(unsigned* words) const {
    if constexpr (sizeof(T) == 2) {
      if (words == nullptr) return;
      const unsigned low = two << 16, high = two & 0xffff0000U, mine = __reduce_max_sync(0xffffffffU, low > high ? low : high);
      unsigned* word = words + (blockIdx.x + threadIdx.x / 32 + threadIdx.y) % kAmaxWords;
      if ((threadIdx.x + blockDim.x * threadIdx.y) % 32 == 0 && mine > *const_cast<volatile unsigned*>(word)) atomicMax(word, mine);
    }
  }
};

constexpr float kLog2e = 1.4426950408889634f;

// The hardware's own: exact to 2 roundings of fp32, subnormal results are 0, NaN stays NaN.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / (1 + e^-x) to a few roundings of fp32, in four instructions: far below one of bf16. Far out it is 0 and 1.
__device__ inline float sigmoid_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + exp2_approx(x * -kLog2e)));
  return result;
}

// The sum over a warp, the same bits in every lane.
__device__ inline float warp_sum(float mine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(0xffffffff, mine, step);
  return mine;
}

// The sum over the threads that share a row: a warp (no barrier), or the whole block, whose threads must all call it.
template <int kRowThreads>
__device__ float row_sum(float mine) {
  mine = warp_sum(mine);
  if constexpr (kRowThreads > 32) {
    __shared__ float parts[kRowThreads / 32];
    __syncthreads();  // an earlier sum has been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = 0;
#pragma unroll
    for (int warp = 0; warp < kRowThreads / 32; ++warp) mine += parts[warp];
  }
  return mine;
}

}  // namespace cairn::kernels::device
