#include "base/random/permutation.h"

#include <bit>

#include "base/check.h"

namespace cairn::base {
namespace {

// A round function: the finaliser of splitmix64 (Steele, Lea, Flood 2014) over the half and the round's key.
uint64_t mix(uint64_t half, uint64_t key) {
  uint64_t z = (half + 0x9E3779B97F4A7C15) * 0xD1342543DE82EF95 ^ key;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }

}  // namespace

// A Feistel network over the smallest power of two 2^b >= n, applied again until the value falls below n ("cycle walking", Black and
// Rogaway, Ciphers with arbitrary finite domains, 2002): fewer than two walks on average. One round on the halves (L, R):
//   (L, R) -> (R, L xor mix(R, key))
// If b is odd the halves differ by one bit and swap widths each round; an even number of rounds restores them.
Permutation::Permutation(uint64_t n, const Random& random) : n_(n) {
  CAIRN_CHECK(n >= 1 && n <= uint64_t{1} << 63, "a permutation of {} things", n);
  const int bits = std::bit_width(n - 1);
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  for (int round = 0; round < kRounds; ++round) round_keys_[round] = random.bits64(static_cast<uint64_t>(round));
}

uint64_t Permutation::at(uint64_t index) const {
  CAIRN_CHECK(index < n_, "index {} of a permutation of {}", index, n_);
  uint64_t x = index;
  do {
    uint64_t left = x >> right_bits_, right = x & mask(right_bits_);
    int left_width = left_bits_;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t changed = (left ^ mix(right, round_keys_[round])) & mask(left_width);
      left = right;
      right = changed;
      left_width = left_bits_ + right_bits_ - left_width;
    }
    x = left << right_bits_ | right;
  } while (x >= n_);
  return x;
}

uint64_t Permutation::index_of(uint64_t value) const {
  CAIRN_CHECK(value < n_, "value {} of a permutation of {}", value, n_);
  uint64_t x = value;
  do {
    uint64_t left = x >> right_bits_, right = x & mask(right_bits_);
    int right_width = right_bits_;
    for (int round = kRounds - 1; round >= 0; --round) {
      const uint64_t restored = (right ^ mix(left, round_keys_[round])) & mask(right_width);
      right = left;
      left = restored;
      right_width = left_bits_ + right_bits_ - right_width;
    }
    x = left << right_bits_ | right;
  } while (x >= n_);
  return x;
}

}  // namespace cairn::base
