#include "comm/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace cairn::comm {
namespace {

// Elements per block: they fit the L1 cache, and a constant lets the compiler vectorise.
constexpr int64_t kBlock = 256;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

float widen(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

void narrow(float value, Bf16& out) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  out.bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40 : rounded);
}

float widen(F16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

void narrow(float value, F16& out) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float size = std::fabs(value);
  if (value != value) {
    out.bits = sign | 0x7e00;
  } else if (size >= 65520.0f) {
    out.bits = sign | 0x7c00;
  } else if (size < 0x1p-14f) {  // subnormal: an integer multiple of 2^-24
    out.bits = sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  } else {
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    out.bits = sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
  }
}

template <typename T>
T widen(T x) requires std::is_arithmetic_v<T> {
  return x;
}
template <typename T>
void narrow(T value, T& out) requires std::is_arithmetic_v<T> {
  out = value;
}

template <Reduce kind, typename A>
A pair(A a, A b) {
  if constexpr (kind == Reduce::sum) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));  // wraps
    } else {
      return a + b;
    }
  } else {
    const bool second = kind == Reduce::max ? b > a : b < a;
    return second || b != b ? b : a;  // NaN propagates
  }
}

template <Reduce kind, typename T>
void combine_block(T* out, std::span<const void* const> sources, int64_t first, int64_t count) {
  using A = decltype(widen(T{}));
  std::array<A, kBlock> sum;
  const auto fold = [&](auto n) __attribute__((always_inline)) {
    const T* head = static_cast<const T*>(sources[0]) + first;
    for (int64_t i = 0; i < n; ++i) sum[i] = widen(head[i]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T* next = static_cast<const T*>(sources[s]) + first;
      for (int64_t i = 0; i < n; ++i) sum[i] = pair<kind, A>(sum[i], widen(next[i]));
    }
    for (int64_t i = 0; i < n; ++i) narrow(sum[i], out[first + i]);
  };
  if (count == kBlock) {
    fold(std::integral_constant<int64_t, kBlock>());  // a compile-time constant
  } else {
    fold(count);
  }
}

// Nearly all traffic: sums of floats, vector by vector straight from the sources, which may be in another core's cache.
struct SumOfFloats {
  template <int W>
  CAIRN_INLINE static void run(float* out, std::span<const void* const> sources, int64_t count) {
    const auto* first = static_cast<const float*>(sources[0]);
    int64_t i = 0;
    for (; i + 4 * W <= count; i += 4 * W) {
      kernels::simd::Float<W> sum[4], more[4];
      std::memcpy(sum, first + i, sizeof sum);
      for (size_t s = 1; s < sources.size(); ++s) {
        std::memcpy(more, static_cast<const float*>(sources[s]) + i, sizeof more);
        for (int k = 0; k < 4; ++k) sum[k] += more[k];
      }
      std::memcpy(out + i, sum, sizeof sum);
    }
    for (; i < count; ++i) {
      float sum = first[i];
      for (size_t s = 1; s < sources.size(); ++s) sum += static_cast<const float*>(sources[s])[i];
      out[i] = sum;
    }
  }
};

template <Reduce kind, typename T>
void combine_as(void* out, std::span<const void* const> sources, int64_t count) {
  for (int64_t first = 0; first < count; first += kBlock) {
    combine_block<kind, T>(static_cast<T*>(out), sources, first, std::min(kBlock, count - first));
  }
}

template <typename T>
void combine_with(Reduce reduce, void* out, std::span<const void* const> sources, int64_t count) {
  switch (reduce) {
    case Reduce::sum:
      return combine_as<Reduce::sum, T>(out, sources, count);
    case Reduce::max:
      return combine_as<Reduce::max, T>(out, sources, count);
    case Reduce::min:
      return combine_as<Reduce::min, T>(out, sources, count);
  }
}

}  // namespace

int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return 4;
    case Dtype::f64:
      return 8;
    case Dtype::bf16:
      return 2;
    case Dtype::f16:
      return 2;
    case Dtype::i32:
      return 4;
    case Dtype::i64:
      return 8;
    case Dtype::u8:
      return 1;
  }
  return 1;
}

std::string_view name(Dtype dtype) {
  constexpr std::array<std::string_view, 7> names{"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
  return names.at(static_cast<size_t>(dtype));
}

std::string_view name(Reduce reduce) {
  constexpr std::array<std::string_view, 3> names{"sum", "max", "min"};
  return names.at(static_cast<size_t>(reduce));
}

void combine(Reduce reduce, Dtype dtype, void* out, std::span<const void* const> sources, int64_t count) {
  switch (dtype) {
    case Dtype::f32:
      if (reduce == Reduce::sum) return kernels::simd::run<SumOfFloats>(static_cast<float*>(out), sources, count);
      return combine_with<float>(reduce, out, sources, count);
    case Dtype::f64:
      return combine_with<double>(reduce, out, sources, count);
    case Dtype::bf16:
      return combine_with<Bf16>(reduce, out, sources, count);
    case Dtype::f16:
      return combine_with<F16>(reduce, out, sources, count);
    case Dtype::i32:
      return combine_with<int32_t>(reduce, out, sources, count);
    case Dtype::i64:
      return combine_with<int64_t>(reduce, out, sources, count);
    case Dtype::u8:
      return combine_with<uint8_t>(reduce, out, sources, count);
  }
}

void add_into(Dtype dtype, void* out, const void* in, int64_t count) {
  const void* const both[] = {out, in};
  combine(Reduce::sum, dtype, out, both, count);
}

}  // namespace cairn::comm
