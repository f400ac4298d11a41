// Makes a Codec of a format, which says how one run of elements becomes bytes; compiled for every vector width of the machine.
#pragma once
#include <algorithm>
#include <cstring>

#include "comm/codec.h"
#include "kernels/simd.h"

namespace cairn::comm {

// Codes of 16 and 32 bits at any address.
using Code16 = uint16_t __attribute__((aligned(1), may_alias));
using Code32 = uint32_t __attribute__((aligned(1), may_alias));

// A format F has, all static:
//   kName
//   kBlock                         elements that share a scale, 1 where there is none
//   kRun                           elements of one call: the block, or where that is 1 a number that keeps vectors busy
//   kScaleBytes, kCodeBytes        of a block, before its codes; of an element
//   encode(in, out)                a whole run
//   decode<kAdd>(in, out)          a whole run; kAdd: onto what is there
// Its loops run over kRun elements, a number the compiler knows, and carry `GCC ivdep`: so they become vectors without tests.
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
  static int64_t bytes_of(int64_t count) { return F::kScaleBytes + count * F::kCodeBytes; }  // 0 < count <= kRun

  // The processor does not look far enough ahead on its own: large buffers are a third slower without. (An address past the end does no
  // harm, but must not be made by pointer arithmetic.)
  template <int kWrite>
  CAIRN_INLINE static void fetch_ahead(const void* from, int64_t bytes) {
    constexpr int64_t kAhead = 4096, kLine = 64;
#pragma GCC unroll 16
    for (int64_t i = 0; i < bytes; i += kLine)
      __builtin_prefetch(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(from) + kAhead + i), kWrite);
  }

  // What is left at the end goes through a whole run in local memory, filled up with zeros.
  struct Encode {
    template <int>
    CAIRN_INLINE static void run(const float* in, int64_t count, std::byte* out) {
      for (; count >= F::kRun; count -= F::kRun, in += F::kRun, out += kRunBytes) {
        fetch_ahead<0>(in, F::kRun * 4);
        fetch_ahead<1>(out, kRunBytes);
        F::encode(in, out);
      }
      if (count == 0) return;
      float values[F::kRun] = {};
      std::byte codes[kRunBytes];
      std::copy_n(in, count, values);
      F::encode(values, codes);
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
