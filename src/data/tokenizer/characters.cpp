#include "data/tokenizer/characters.h"

#include <algorithm>
#include <memory>

#include "data/tokenizer/unicode_ranges.h"

namespace cairn::data {
namespace {

// One byte for each code point: a megabyte, made in well under a millisecond when the first character beyond ASCII is met.
const uint8_t* kinds_by_code() {
  static const std::unique_ptr<const uint8_t[]> table = [] {
    auto kinds = std::make_unique<uint8_t[]>(kNoCharacter);
    std::fill_n(kinds.get(), size_t{kNoCharacter}, Kind::other);
    constexpr uint8_t named = Kind::letter | Kind::number | Kind::space;
    for (const auto& [first, last, found] : unicode_ranges()) {
      const auto kind = static_cast<uint8_t>(found & named ? found : found | Kind::other);
      std::fill_n(kinds.get() + first, last - first + 1, kind);
    }
    return kinds;
  }();
  return table.get();
}

constexpr Character kStray{kNoCharacter, Kind::other, 1};

}  // namespace

Character wide_character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const size_t left = text.size() - at;
  const uint32_t lead = byte(0);
  if (lead < 0xc2 || lead > 0xf4) return kStray;
  if (lead < 0xe0) {
    if (left < 2 || !follows(1)) return kStray;
    const uint32_t code = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
    return {code, kinds_by_code()[code], 2};
  }
  if (lead < 0xf0) {
    if (left < 3 || !follows(1) || !follows(2)) return kStray;
    const uint32_t code = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    if (code < 0x800 || (code >= 0xd800 && code <= 0xdfff)) return kStray;
    return {code, kinds_by_code()[code], 3};
  }
  if (left < 4 || !follows(1) || !follows(2) || !follows(3)) return kStray;
  const uint32_t code = (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  if (code < 0x10000 || code >= kNoCharacter) return kStray;
  return {code, kinds_by_code()[code], 4};
}

Character character_before(std::string_view text, size_t end) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(4, end); ++bytes) {
    const Character c = character_at(text, end - bytes);
    if (c.code != kNoCharacter && c.bytes == bytes) return c;
  }
  return kStray;
}

}  // namespace cairn::data
