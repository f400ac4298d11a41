#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::base {
struct Random;
}

namespace cairn::comm {

// Sparse messages (rand-k, top-k). A codec (codec.h) shrinks every element; here most elements are not sent at all. Rand-k is unbiased
// after scaling; top-k needs error feedback.
//
// Indices are element positions, ascending, without duplicates.
using Indices = std::vector<int64_t>;

// k for a density in (0, 1]: round(density * elements), at least one if there are elements.
int64_t kept_count(int64_t elements, double density);

// Rand-k: `count` of `elements` indices, every subset equally likely. A function of `random` alone: a receiver with the same key knows the
// indices, so that only values travel. Scaled by elements / count the sparse message is unbiased.
Indices random_indices(const base::Random& random, int64_t elements, int64_t count);

// Top-k: the indices of the `count` largest magnitudes; among equal ones the first. NaN is refused as Error::Kind::diverged. Up to 2^32
// elements.
Indices top_k_indices(std::span<const float> message, int64_t count);

// Gathers the values at these indices; writes or adds them back. Other elements stay unchanged.
void values_at(std::span<const float> message, std::span<const int64_t> indices, std::span<float> values);
void set_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values);
void add_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values, float factor = 1);

// Top-k with error feedback (Stich et al. 2018). e = residual, m = message:
//   e += m;   indices = top_k(e);   values = e[indices];   e[indices] = 0
// so that sent + residual is exactly m + the residual before. A message that is not finite is refused (diverged) before anything changes.
Indices take_top_k(std::span<const float> message, std::span<float> residual, int64_t count, std::vector<float>& values);

// Indices and values as bytes: the count, the gaps between indices (both as LEB128 varints: a gap below 128 takes one byte), the floats.
// decode_sparse refuses bytes that encode_sparse cannot have written (Error::Kind::corrupt_file).
struct Sparse {
  Indices indices;
  std::vector<float> values;
};
std::vector<std::byte> encode_sparse(std::span<const int64_t> indices, std::span<const float> values);
Sparse decode_sparse(std::span<const std::byte> bytes, int64_t elements);

}  // namespace cairn::comm
