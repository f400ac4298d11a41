// Reads UTF-8 one character (code point) at a time, with its Unicode class.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::data {

// Classes of a character, as bits: exactly one of letter (\p{L}), number (\p{N}), space (\s) and other; the rest are independent.
namespace Kind {
inline constexpr uint8_t letter = 1;
inline constexpr uint8_t number = 2;
inline constexpr uint8_t space = 4;
inline constexpr uint8_t newline = 8;  // \r or \n, which are space too
inline constexpr uint8_t other = 16;
inline constexpr uint8_t word = 32;          // \w
inline constexpr uint8_t nfc_unstable = 64;  // may change or combine with neighbours under NFC
}  // namespace Kind

struct Character {
  uint32_t code = 0;
  uint8_t kinds = 0;
  uint8_t bytes = 0;
};

// The code of a byte that is not part of well-formed UTF-8. It is `other` and one byte long.
inline constexpr uint32_t kNoCharacter = 0x110000;

constexpr std::array<uint8_t, 128> ascii_kinds() {
  std::array<uint8_t, 128> table{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = c >= '0' && c <= '9';
    if (letter || number)
      table[c] = (letter ? Kind::letter : Kind::number) | Kind::word;
    else if (c == ' ' || (c >= '\t' && c <= '\r'))
      table[c] = c == '\n' || c == '\r' ? Kind::space | Kind::newline : Kind::space;
    else
      table[c] = c == '_' ? Kind::other | Kind::word : Kind::other;
  }
  return table;
}
inline constexpr std::array<uint8_t, 128> kAsciiKinds = ascii_kinds();

// The character that begins with byte `at`, which is 0x80 or above.
Character wide_character_at(std::string_view text, size_t at);

// The character that begins at byte `at` of `text`.
inline Character character_at(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {lead, kAsciiKinds[lead], 1};
  return wide_character_at(text, at);
}

// The character that ends before byte `end` (above 0).
Character character_before(std::string_view text, size_t end);

}  // namespace cairn::data
