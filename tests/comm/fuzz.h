#pragma once
// Shared by the fuzzers of wire formats: seeded random numbers, and mutations that know headers and their fields.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace cairn::comm::fuzz {

using Bytes = std::vector<std::byte>;

// SplitMix64: a new one costs nothing, so that every input has a seed of its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : bits() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

struct Field {
  size_t offset, size;
};

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void append(Bytes& to, std::span<const std::byte> more) { to.insert(to.end(), more.begin(), more.end()); }

inline Bytes random_bytes(Random& random, uint64_t count) {
  Bytes made(count);
  for (std::byte& b : made) b = static_cast<std::byte>(random.bits());
  return made;
}

// Where bounds lie: of the types, and near what is allowed or what stands there.
inline uint64_t boundary(Random& random, uint64_t there, uint64_t allowed) {
  const std::array<uint64_t, 22> values{0,          1,     2,           7,       8,           63,          64,          65,
                                        127,        128,   255,         256,     0x7fff'ffff, 0x8000'0000, 0xffff'ffff, ~0ull >> 1,
                                        1ull << 63, ~0ull, allowed - 1, allowed, allowed + 1, ~allowed};
  if (random.one_in(4)) return there + (random.one_in(2) ? 1 : ~0ull);
  if (random.one_in(8)) return there * 2;
  return values[random.below(values.size())];
}

// Sets one field of the header at `at` to a value near a bound.
inline void spoil_field(Random& random, std::span<std::byte> header, std::span<const Field> fields, uint64_t allowed) {
  const Field field = fields[random.below(fields.size())];
  uint64_t value = 0;
  std::memcpy(&value, header.data() + field.offset, field.size);
  value = boundary(random, value, allowed);
  std::memcpy(header.data() + field.offset, &value, field.size);
}

// A stream of records that begin with a header, and what may happen to it.
struct Stream {
  Bytes bytes;
  std::vector<size_t> headers;  // where they begin, in order
};

inline void mutate(Random& random, Stream& stream, size_t header_bytes, std::span<const Field> fields, uint64_t allowed) {
  Bytes& bytes = stream.bytes;
  if (bytes.empty()) return;
  const auto at = static_cast<ptrdiff_t>(random.below(bytes.size()));
  const auto length = static_cast<ptrdiff_t>(1 + random.below(std::min<uint64_t>(bytes.size() - static_cast<size_t>(at), 200)));
  switch (random.below(9)) {
    case 0:
    case 1:
    case 2: {  // fields are what a parser believes
      const size_t header = stream.headers[random.below(stream.headers.size())];
      if (header + header_bytes > bytes.size()) break;
      spoil_field(random, std::span(bytes).subspan(header, header_bytes), fields, allowed);
      break;
    }
    case 3:
      bytes[static_cast<size_t>(at)] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    case 4:
      bytes.resize(static_cast<size_t>(at));
      break;
    case 5: {  // the same again
      const Bytes piece(bytes.begin() + at, bytes.begin() + at + length);
      bytes.insert(bytes.begin() + at, piece.begin(), piece.end());
      break;
    }
    case 6:
      bytes.erase(bytes.begin() + at, bytes.begin() + at + length);
      break;
    case 7: {  // the end of one record after the beginning of another
      const size_t from = stream.headers[random.below(stream.headers.size())] + random.below(header_bytes);
      if (from >= bytes.size()) break;
      const Bytes piece(bytes.begin() + static_cast<ptrdiff_t>(from), bytes.end());
      bytes.resize(static_cast<size_t>(at));
      append(bytes, piece);
      break;
    }
    default: {
      const Bytes noise = random_bytes(random, static_cast<uint64_t>(length));
      std::copy(noise.begin(), noise.end(), bytes.begin() + at);
    }
  }
}

}  // namespace cairn::comm::fuzz
