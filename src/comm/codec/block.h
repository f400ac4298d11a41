// Turns a format, which codes one run of elements, into a Codec. Compiled for every vector width of the machine.
#pragma once
#include <algorithm>
#include <cstring>

#include "comm/codec.h"
#include "kernels/cpu/simd.h"

namespace cairn::comm {

// Unaligned codes of 16 and 32 bits.
using Code16 = uint16_t __attribute__((aligned(1), may_alias));
using Code32 = uint32_t __attribute__((aligned(1), may_alias));

// The bits of the largest magnitude of a run; NaN counts as larger than infinity. Four vectors at a time hide the latency of comparisons.
template <int W, int64_t kRun>
CAIRN_INLINE int32_t largest_magnitude(const float* in) {
  using Int = kernels::simd::Int<W>;
  Int most[4] = {};
  for (int64_t i = 0; i < kRun; i += 4 * W)
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      Int size;
      std::memcpy(&size, in + i + j * W, sizeof size);
      size &= 0x7fffffff;
      most[j] = size > most[j] ? size : most[j];
    }
#pragma GCC unroll 4
  for (int64_t j = 1; j < 4; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
  int32_t lanes[W];
  std::memcpy(lanes, &most[0], sizeof lanes);
#pragma GCC unroll 16
  for (int i = 1; i < W; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

// A format F has, all static:
//   kName
//   kBlock                         elements that share a scale; 1: no scale
//   kRun                           elements per call: the block or, without a scale, enough to fill vectors
//   kScaleBytes, kCodeBytes        bytes of the scale before the codes of a block; bytes of one code
//   encode<W>(in, most, out)       one run on vectors of W floats; most: its largest magnitude, 0 without scales
//   decode<kAdd>(in, out)          one run; kAdd: adds to out
// Loops run over kRun elements, a constant, and carry `GCC ivdep`, so that they vectorise without run-time checks.
template <class F>
class BlockCodec final : public Codec {
 public:
  std::string_view name() const override { return F::kName; }
  int64_t block() const override { return F::kBlock; }
  int64_t encoded_bytes(int64_t count) const override {
    return (count + F::kBlock - 1) / F::kBlock * F::kScaleBytes + count * F::kCodeBytes;
  }

  void encode(const float* in, int64_t count, std::byte* out) const override { kernels::simd::run<Encode>(in, count, out); }
  void decode(const std::byte* in, int64_t count, float* out) const override { kernels::simd::run<Decode<false>>(in, count, out); }
  void decode_add(const std::byte* in, int64_t count, float* out) const override { kernels::simd::run<Decode<true>>(in, count, out); }

 private:
  static constexpr int64_t kRunBytes = F::kScaleBytes + F::kRun * F::kCodeBytes;
  template <int W>
  CAIRN_INLINE static int32_t most_of(const float* in) {
    if constexpr (F::kScaleBytes > 0) return largest_magnitude<W, F::kRun>(in);
    return 0;
  }
  static int64_t bytes_of(int64_t count) { return F::kScaleBytes + count * F::kCodeBytes; }  // 0 < count <= kRun

  // Software prefetch: large buffers are a third slower without it. (Prefetching past the end is harmless; the address must not be made by
  // pointer arithmetic.)
  template <int kWrite>
  CAIRN_INLINE static void fetch_ahead(const void* from, int64_t bytes) {
    constexpr int64_t kAhead = 4096, kLine = 64;
#pragma GCC unroll 16
    for (int64_t i = 0; i < bytes; i += kLine)
      __builtin_prefetch(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(from) + kAhead + i), kWrite);
  }

  // The last partial run is coded in local memory, padded with zeros.
  struct Encode {
    template <int W>
    CAIRN_INLINE static void run(const float* in, int64_t count, std::byte* out) {
      // Finds the maximum of the next block while this one is coded: the two are independent.
      int32_t most = count >= F::kRun ? most_of<W>(in) : 0;
      for (; count >= F::kRun; count -= F::kRun, in += F::kRun, out += kRunBytes) {
        fetch_ahead<0>(in, F::kRun * 4);
        fetch_ahead<1>(out, kRunBytes);
        const int32_t next = count >= 2 * F::kRun ? most_of<W>(in + F::kRun) : 0;
        F::template encode<W>(in, most, out);
        most = next;
      }
      if (count == 0) return;
      float values[F::kRun] = {};
      std::byte codes[kRunBytes];
      std::copy_n(in, count, values);
      F::template encode<W>(values, most_of<W>(values), codes);
      std::memcpy(out, codes, static_cast<size_t>(bytes_of(count)));
    }
  };

  template <bool kAdd>
  struct Decode {
    template <int>
    CAIRN_INLINE static void run(const std::byte* in, int64_t count, float* out) {
      for (; count >= F::kRun; count -= F::kRun, in += kRunBytes, out += F::kRun) {
        fetch_ahead<0>(in, kRunBytes);
        fetch_ahead<1>(out, F::kRun * 4);
        F::template decode<kAdd>(in, out);
      }
      if (count == 0) return;
      float values[F::kRun] = {};
      std::byte codes[kRunBytes] = {};
      std::memcpy(codes, in, static_cast<size_t>(bytes_of(count)));
      if (kAdd) std::copy_n(out, count, values);
      F::template decode<kAdd>(codes, values);
      std::copy_n(values, count, out);
    }
  };
};

}  // namespace cairn::comm
