#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::base {

// Counter-based random numbers (Philox, random/philox.h): there is no hidden state that advances. The number at an index is a function of
// the seed, of the purposes, names and indices by which this value was derived, and of that index. Nothing is keyed by rank, so a run gets
// the same numbers on any layout, on CPU and GPU:
//   const Random dropout = Random(seed).for_purpose("dropout").for_index(step).for_index(sample);
//   if (dropout.uniform(position) < rate) ...
// Use one kind of number per derived value: bits, uniform and normal numbers of one value share their bits.
struct Random {
  uint64_t key = 0;
  uint64_t stream = 0;

  Random() = default;
  explicit Random(uint64_t seed) : key(seed) {}

  // Derived values; the order of derivation matters. A purpose and a name that are spelled the same give different values.
  [[nodiscard]] Random for_purpose(std::string_view purpose) const;
  [[nodiscard]] Random for_name(std::string_view name) const;
  [[nodiscard]] Random for_index(uint64_t index) const;

  // bits32(i) is word i%4 of Philox at counter (i/4, stream) under `key`; bits64(i) is words 2(i%2), 2(i%2)+1 at (i/2, stream).
  uint32_t bits32(uint64_t index) const;
  uint64_t bits64(uint64_t index) const;
  double uniform(uint64_t index) const;              // [0, 1), 53 bits of bits64
  float uniform_float(uint64_t index) const;         // [0, 1), 24 bits of bits32
  float normal(uint64_t index) const;                // standard normal, bitwise identical on every device: see random/box_muller.h
  uint64_t below(uint64_t index, uint64_t n) const;  // [0, n), n >= 1; bias below n / 2^64

  // values[i] = normal(first + i), or uniform_float(first + i); several times as fast as one by one.
  void fill_normal(std::span<float> values, uint64_t first = 0) const;
  void fill_uniform(std::span<float> values, uint64_t first = 0) const;

  friend bool operator==(const Random&, const Random&) = default;
};

}  // namespace cairn::base
