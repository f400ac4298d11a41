#include "harness/chaos_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "comm/group.h"

namespace cairn::harness {
namespace {

using comm::Dtype;
using comm::Reduce;

// Half precision, for small integers only: written apart from the product's own conversions, which it checks.
struct Half {
  uint16_t bits;
  static Half from(int value) {
    if (value == 0) return {0};
    const unsigned size = static_cast<unsigned>(value < 0 ? -value : value);
    unsigned exponent = 0;
    while (size >> (exponent + 1) != 0) ++exponent;
    const unsigned fraction = (size << 10 >> exponent) & 0x3ff;
    return {static_cast<uint16_t>((value < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 | fraction)};
  }
  int value() const {
    if ((bits & 0x7fff) == 0) return 0;
    const int size = ((1 << 10 | (bits & 0x3ff)) << ((bits >> 10 & 31) - 15)) >> 10;
    return bits & 0x8000 ? -size : size;
  }
};

struct Brain {
  uint16_t bits;
  static Brain from(int value) {
    const auto single = static_cast<float>(value);
    uint32_t word = 0;
    std::memcpy(&word, &single, sizeof word);
    return {static_cast<uint16_t>(word >> 16)};
  }
  int value() const {
    const uint32_t word = uint32_t{bits} << 16;
    float single = 0;
    std::memcpy(&single, &word, sizeof single);
    return static_cast<int>(single);
  }
};

template <typename T>
T element(uint64_t random) {
  const double mantissa = static_cast<double>(random >> 40) * 0x1p-23 - 1;
  return static_cast<T>(std::ldexp(mantissa, static_cast<int>(random % 24) - 12));
}
template <>
int32_t element(uint64_t random) {
  return static_cast<int32_t>(random % 16) - 8;
}
template <>
int64_t element(uint64_t random) {
  return static_cast<int64_t>(random % 16) - 8;
}
template <>
uint8_t element(uint64_t random) {
  return static_cast<uint8_t>(random % 16);
}
template <>
Half element(uint64_t random) {
  return Half::from(static_cast<int>(random % 16) - 8);
}
template <>
Brain element(uint64_t random) {
  return Brain::from(static_cast<int>(random % 16) - 8);
}

template <typename T>
T reduce_two(Reduce reduce, T a, T b) {
  if (reduce == Reduce::sum) return static_cast<T>(a + b);
  return reduce == Reduce::max ? std::max(a, b) : std::min(a, b);
}
Half reduce_two(Reduce reduce, Half a, Half b) { return Half::from(reduce_two(reduce, a.value(), b.value())); }
Brain reduce_two(Reduce reduce, Brain a, Brain b) { return Brain::from(reduce_two(reduce, a.value(), b.value())); }

template <typename F>
auto with_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f32:
      return f(float{});
    case Dtype::f64:
      return f(double{});
    case Dtype::bf16:
      return f(Brain{});
    case Dtype::f16:
      return f(Half{});
    case Dtype::i32:
      return f(int32_t{});
    case Dtype::i64:
      return f(int64_t{});
    case Dtype::u8:
      break;
  }
  return f(uint8_t{});
}

}  // namespace

std::vector<std::byte> chaos_values(const ValueKey& key, Dtype dtype, int64_t count) {
  const base::Random random = base::Random(key.seed)
                                  .for_purpose("values")
                                  .for_index(static_cast<uint64_t>(key.operation))
                                  .for_index(static_cast<uint64_t>(key.member));
  return with_type(dtype, [&]<typename T>(T) {
    std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      const T one = element<T>(random.bits64(static_cast<uint64_t>(i)));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &one, sizeof(T));
    }
    return bytes;
  });
}

std::vector<std::byte> reduced_values(Dtype dtype, Reduce reduce, const std::vector<std::vector<std::byte>>& members) {
  return with_type(dtype, [&]<typename T>(T) {
    std::vector<std::byte> result = members.at(0);
    for (size_t at = 0; at < result.size(); at += sizeof(T)) {
      T sum;
      std::memcpy(&sum, result.data() + at, sizeof(T));
      for (size_t m = 1; m < members.size(); ++m) {
        T one;
        std::memcpy(&one, members[m].data() + at, sizeof(T));
        sum = reduce_two(reduce, sum, one);
      }
      std::memcpy(result.data() + at, &sum, sizeof(T));
    }
    return result;
  });
}

std::vector<std::byte> all_reduced_values(comm::AllReduce algorithm, Dtype dtype, Reduce reduce, std::vector<std::vector<std::byte>> x) {
  const auto n = x.size();
  if (algorithm == comm::AllReduce::direct) return reduced_values(dtype, reduce, x);
  if (algorithm == comm::AllReduce::ring) {
    std::vector<std::byte> all;
    const int64_t size = comm::size_of(dtype);
    const auto counts = comm::even_counts(static_cast<int64_t>(x[0].size()) / size, static_cast<int>(n));
    for (size_t part = 0; part < n; ++part) {
      std::vector<std::vector<std::byte>> versions;
      for (size_t i = 1; i <= n; ++i) {
        const auto first = x[(part + i) % n].begin() + static_cast<int64_t>(all.size());
        versions.emplace_back(first, first + counts[part] * size);
      }
      const auto sum = reduced_values(dtype, reduce, versions);
      all.insert(all.end(), sum.begin(), sum.end());
    }
    return all;
  }
  const size_t pairs = algorithm == comm::AllReduce::halving ? n - std::bit_floor(n) : 0;
  for (size_t i = 0; i < pairs; ++i) {
    x[i] = reduced_values(dtype, reduce, {x[i], x[i + 1]});
    x.erase(x.begin() + static_cast<int64_t>(i) + 1);
  }
  while (x.size() > 1) {  // neighbours; the last one may be alone
    std::vector<std::vector<std::byte>> next;
    for (size_t i = 0; i < x.size(); i += 2) {
      next.push_back(i + 1 < x.size() ? reduced_values(dtype, reduce, {x[i], x[i + 1]}) : x[i]);
    }
    x = std::move(next);
  }
  return x[0];
}

}  // namespace cairn::harness
