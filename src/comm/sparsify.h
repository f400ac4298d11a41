#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::base {
struct Random;
}

namespace cairn::comm {

// Messages of some of their floats. A codec (codec.h) makes every element smaller and keeps no state; here most elements do not travel at
// all, and what becomes of them is the method's business: random ones are made up for on average, the largest ones by error feedback.
//
// Places are positions in the message, ascending, each at most once.
using Indices = std::vector<int64_t>;

// How many of `elements` a density in (0, 1] lets through: the nearest whole number, but at least one where there is any.
int64_t kept_count(int64_t elements, double density);

// `count` of `elements` places, each set of that size as likely as any other. A function of `random` alone: whoever knows the key knows
// the places, and only values travel. Scaled by elements / count, what they let through is the message on average (rand-k).
Indices random_indices(const base::Random& random, int64_t elements, int64_t count);

// The places of the `count` largest magnitudes, of equal ones the first (top-k). NaN has no place in that order: it is refused as
// Error::Kind::diverged. Up to 2^32 elements.
Indices top_k_indices(std::span<const float> message, int64_t count);

// The values at these places, and back. `set_at` leaves all else as it is.
void values_at(std::span<const float> message, std::span<const int64_t> indices, std::span<float> values);
void set_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values);
void add_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values, float factor = 1);

// Error feedback: what a message left out is owed, and goes through with the next one. Adds the message to what is owed, takes the largest
// `count` of that out and returns where; `values` becomes what was taken. Afterwards sent + owed is message + owed before, to the bit,
// since elements travel whole. A message that is not finite is refused (diverged) before anything is touched.
Indices take_top_k(std::span<const float> message, std::span<float> residual, int64_t count, std::vector<float>& values);

// Places and values as bytes: the number of pairs, the gaps between places (both in sevens of bits, so that a gap below 128 is one byte),
// the values as they lie in memory. decode_sparse refuses what encode_sparse cannot have written (Error::Kind::corrupt_file).
struct Sparse {
  Indices indices;
  std::vector<float> values;
};
std::vector<std::byte> encode_sparse(std::span<const int64_t> indices, std::span<const float> values);
Sparse decode_sparse(std::span<const std::byte> bytes, int64_t elements);

}  // namespace cairn::comm
