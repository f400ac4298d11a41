#include "base/random.h"

#include "base/check.h"
#include "base/random/box_muller.h"
#include "base/random/philox.h"

namespace cairn::base {
namespace {

Words4 block(const Random& r, uint64_t index) { return random_words(r.key, r.stream, index); }

// A derived value is Philox output under a modified key: key xor a tag, one tag per kind of derivation. Lookups do not use such keys
// (except by chance), so derived values are independent of each other and of the numbers of their parent.
enum : uint64_t { kByPurpose = 0x9D39247E33776D41, kByName = 0x2AF7398005AAA5C7, kByIndex = 0x44DB015024623547 };

Random derive(const Random& parent, uint64_t tag, uint64_t what) {
  Random tagged = parent;
  tagged.key ^= tag;
  const Words4 w = block(tagged, what);
  Random child;
  child.key = uint64_t{w.word[1]} << 32 | w.word[0];
  child.stream = uint64_t{w.word[3]} << 32 | w.word[2];
  return child;
}

// FNV-1a over the bytes, 64 bits, then mixed by derive().
uint64_t hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return h;
}

float as_uniform_float(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

}  // namespace

Random Random::for_purpose(std::string_view purpose) const { return derive(*this, kByPurpose, hash(purpose)); }
Random Random::for_name(std::string_view name) const { return derive(*this, kByName, hash(name)); }
Random Random::for_index(uint64_t index) const { return derive(*this, kByIndex, index); }

uint32_t Random::bits32(uint64_t index) const { return block(*this, index / 4).word[index % 4]; }

uint64_t Random::bits64(uint64_t index) const {
  const Words4 w = block(*this, index / 2);
  return index % 2 == 0 ? uint64_t{w.word[1]} << 32 | w.word[0] : uint64_t{w.word[3]} << 32 | w.word[2];
}

double Random::uniform(uint64_t index) const { return static_cast<double>(bits64(index) >> 11) * 0x1p-53; }
float Random::uniform_float(uint64_t index) const { return as_uniform_float(bits32(index)); }

float Random::normal(uint64_t index) const {
  const Words4 w = block(*this, index / 4);
  const NormalPair pair = index % 4 < 2 ? box_muller(w.word[0], w.word[1]) : box_muller(w.word[2], w.word[3]);
  return index % 2 == 0 ? pair.first : pair.second;
}

uint64_t Random::below(uint64_t index, uint64_t n) const {
  CAIRN_CHECK(n > 0, "a random number below 0 was asked for");
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits64(index)) * n) >> 64);
}

void Random::fill_normal(std::span<float> values, uint64_t first) const {
  size_t i = 0;
  while (i < values.size() && (first + i) % 4 != 0) values[i] = normal(first + i), ++i;
  for (; i + 4 <= values.size(); i += 4) {
    const Words4 w = block(*this, (first + i) / 4);
    const NormalPair a = box_muller(w.word[0], w.word[1]), b = box_muller(w.word[2], w.word[3]);
    values[i] = a.first, values[i + 1] = a.second, values[i + 2] = b.first, values[i + 3] = b.second;
  }
  for (; i < values.size(); ++i) values[i] = normal(first + i);
}

void Random::fill_uniform(std::span<float> values, uint64_t first) const {
  size_t i = 0;
  while (i < values.size() && (first + i) % 4 != 0) values[i] = uniform_float(first + i), ++i;
  for (; i + 4 <= values.size(); i += 4) {
    const Words4 w = block(*this, (first + i) / 4);
    for (size_t k = 0; k < 4; ++k) values[i + k] = as_uniform_float(w.word[k]);
  }
  for (; i < values.size(); ++i) values[i] = uniform_float(first + i);
}

}  // namespace cairn::base
