#pragma once
#include <array>
#include <cstdint>

#include "base/random.h"

namespace cairn::base {

// A pseudo-random permutation of 0..n-1 that is never stored: each image is computed on its own, in constant time and memory, and is the
// same on every machine.
class Permutation {
 public:
  Permutation(uint64_t n, const Random& random);  // n from 1 to 2^63

  uint64_t size() const { return n_; }
  uint64_t at(uint64_t index) const;        // index < n
  uint64_t index_of(uint64_t value) const;  // at(index_of(v)) == v

 private:
  static constexpr int kRounds = 8;
  uint64_t n_;
  int left_bits_ = 0, right_bits_ = 0;
  std::array<uint64_t, kRounds> round_keys_{};
};

}  // namespace cairn::base
