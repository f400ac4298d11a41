// Vectorized memory access of CUDA kernels: 16 bytes at a time where aligned, converted to fp32 in registers. For .cu files.
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

// N adjacent elements in their memory format; bf16 takes half the registers of fp32.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];

  __device__ static Pack load(const T* from) { return *reinterpret_cast<const Pack*>(from); }
  // To global memory. Inline assembly for 16 and 8 bytes: from an assignment the compiler may make one store per element, which made a
  // kernel five times slower.
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

  // Rounds to nearest. Pairs of bf16 take one instruction.
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

// Tracks the amax (largest magnitude) of what a thread writes and combines it over all threads in kAmaxWords words. A word holds the bits
// of a non-negative float, which are ordered like unsigned integers; infinities and NaN are the largest. For bf16; it does nothing for
// fp32.
template <class T>
struct Amax {
  unsigned two = 0;  // two bf16 without signs

  template <int N>
  __device__ void update(const Pack<T, N>& pack) {
    if constexpr (sizeof(T) == 2 && N == 1) {
      two = __vmaxu2(two, __bfloat16_as_ushort(pack.at[0]) & 0x7fffU);
    } else if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < N; i += 2) two = __vmaxu2(two, *reinterpret_cast<const unsigned*>(pack.at + i) & 0x7fff7fffU);
    }
  }
  // All threads of a warp call it. Reads the word first, so that few atomics are issued.
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

// 2^x by the hardware: 2 ulp of fp32, subnormal results are 0, NaN stays NaN.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / (1 + e^-x) to a few ulp of fp32, in four instructions; far more exact than bf16.
__device__ inline float sigmoid_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + exp2_approx(x * -kLog2e)));
  return result;
}

// The sum over a warp, bitwise identical in every lane.
__device__ inline float warp_sum(float mine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(0xffffffff, mine, step);
  return mine;
}

// The sum over the threads of a row: a warp (no barrier), or the whole block, all of whose threads must call it.
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
