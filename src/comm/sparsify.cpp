// Rand-k, top-k with error feedback, and the byte format of sparse messages; sparsify.h has the update rules.
#include "comm/sparsify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace cairn::comm {
namespace {

constexpr uint32_t kInfiniteBits = 0x7F800000;

uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFF; }

[[noreturn]] void fail_not_finite(const char* what, size_t index) {
  throw Error(Error::Kind::diverged, fmt::format("element {} of a message is {}: top-k is not defined for it", index, what));
}

void put_number(uint64_t number, std::vector<std::byte>& bytes) {
  for (; number >= 128; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 128));
  bytes.push_back(static_cast<std::byte>(number));
}

[[noreturn]] void fail_sparse(std::string_view what) {
  throw Error(Error::Kind::corrupt_file, fmt::format("a sparse message is damaged: {}", what));
}

uint64_t take_number(std::span<const std::byte>& bytes) {
  uint64_t number = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    if (bytes.empty()) fail_sparse("it ends too soon");
    const auto byte = static_cast<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    number |= (byte & 127) << shift;
    if (byte < 128) return number;
  }
  fail_sparse("a number in it has no end");
}

}  // namespace

int64_t kept_count(int64_t elements, double density) {
  CAIRN_CHECK(density > 0 && density <= 1, "density {}", density);
  return std::clamp<int64_t>(std::llround(density * static_cast<double>(elements)), std::min<int64_t>(elements, 1), elements);
}

// Floyd's algorithm (Bentley and Floyd 1987): one random number per index, no duplicates. A bitmap sorts them.
Indices random_indices(const base::Random& random, int64_t elements, int64_t count) {
  CAIRN_CHECK(count >= 0 && count <= elements, "{} of {} places", count, elements);
  std::vector<uint64_t> taken(static_cast<size_t>((elements + 63) / 64), 0);
  for (int64_t last = elements - count; last < elements; ++last) {
    const auto drawn = static_cast<int64_t>(random.below(static_cast<uint64_t>(last), static_cast<uint64_t>(last) + 1));
    const bool fresh = (taken[static_cast<size_t>(drawn / 64)] >> (drawn % 64) & 1) == 0;
    const int64_t index = fresh ? drawn : last;
    taken[static_cast<size_t>(index / 64)] |= uint64_t{1} << (index % 64);
  }
  Indices indices;
  indices.reserve(static_cast<size_t>(count));
  for (size_t word = 0; word < taken.size(); ++word)
    for (uint64_t bits = taken[word]; bits != 0; bits &= bits - 1)
      indices.push_back(static_cast<int64_t>(word) * 64 + std::countr_zero(bits));
  return indices;
}

Indices top_k_indices(std::span<const float> message, int64_t count) {
  const size_t elements = message.size();
  CAIRN_CHECK(count >= 0 && count <= static_cast<int64_t>(elements) && elements <= (uint64_t{1} << 32), "{} of {} places", count, elements);
  // One integer orders by magnitude, then by index: the bits of a float grow with its magnitude.
  std::vector<uint64_t> order(elements);
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t magnitude = magnitude_bits(message[i]);
    if (magnitude > kInfiniteBits) fail_not_finite("nan", i);
    order[i] = uint64_t{magnitude} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(i));
  }
  const auto end = order.begin() + count;
  if (count < static_cast<int64_t>(elements)) std::nth_element(order.begin(), end, order.end(), std::greater<>());
  Indices indices;
  indices.reserve(static_cast<size_t>(count));
  for (auto i = order.begin(); i != end; ++i) indices.push_back(static_cast<int64_t>(0xFFFFFFFFu - static_cast<uint32_t>(*i)));
  std::sort(indices.begin(), indices.end());
  return indices;
}

void values_at(std::span<const float> message, std::span<const int64_t> indices, std::span<float> values) {
  for (size_t i = 0; i < indices.size(); ++i) values[i] = message[static_cast<size_t>(indices[i])];
}

void set_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values) {
  for (size_t i = 0; i < indices.size(); ++i) message[static_cast<size_t>(indices[i])] = values[i];
}

void add_at(std::span<float> message, std::span<const int64_t> indices, std::span<const float> values, float factor) {
  for (size_t i = 0; i < indices.size(); ++i) message[static_cast<size_t>(indices[i])] += factor * values[i];
}

Indices take_top_k(std::span<const float> message, std::span<float> residual, int64_t count, std::vector<float>& values) {
  CAIRN_CHECK(message.size() == residual.size(), "{} elements of a message, {} of its residual", message.size(), residual.size());
  for (size_t i = 0; i < message.size(); ++i)
    if (magnitude_bits(message[i] + residual[i]) >= kInfiniteBits) fail_not_finite("not finite", i);
  for (size_t i = 0; i < message.size(); ++i) residual[i] += message[i];
  Indices indices = top_k_indices(residual, count);
  values.resize(indices.size());
  values_at(residual, indices, values);
  for (const int64_t index : indices) residual[static_cast<size_t>(index)] = 0;
  return indices;
}

std::vector<std::byte> encode_sparse(std::span<const int64_t> indices, std::span<const float> values) {
  CAIRN_CHECK(indices.size() == values.size(), "{} places, {} values", indices.size(), values.size());
  std::vector<std::byte> bytes;
  bytes.reserve(indices.size() * 6 + 4);
  put_number(indices.size(), bytes);
  int64_t next = 0;
  for (const int64_t index : indices) {
    put_number(static_cast<uint64_t>(index - next), bytes);
    next = index + 1;
  }
  const size_t head = bytes.size();
  bytes.resize(head + values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data() + head, values.data(), values.size() * sizeof(float));
  return bytes;
}

Sparse decode_sparse(std::span<const std::byte> bytes, int64_t elements) {
  const uint64_t count = take_number(bytes);
  if (count > static_cast<uint64_t>(elements)) fail_sparse(fmt::format("{} pairs for {} elements", count, elements));
  // A pair takes at least five bytes, so a false count cannot make us allocate much.
  if (count > bytes.size() / 5) fail_sparse("it ends too soon");
  Sparse sparse;
  sparse.indices.reserve(count);
  int64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t gap = take_number(bytes);
    if (gap >= static_cast<uint64_t>(elements - next)) fail_sparse(fmt::format("a place beyond its {} elements", elements));
    sparse.indices.push_back(next + static_cast<int64_t>(gap));
    next = sparse.indices.back() + 1;
  }
  if (bytes.size() != count * sizeof(float)) fail_sparse(fmt::format("{} bytes of values for {} places", bytes.size(), count));
  sparse.values.resize(count);
  if (count > 0) std::memcpy(sparse.values.data(), bytes.data(), bytes.size());
  return sparse;
}

}  // namespace cairn::comm
