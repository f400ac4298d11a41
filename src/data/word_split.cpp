#include "data/word_split.h"

#include <array>
#include <cstdint>

namespace cairn::data {
namespace {

enum class Kind : uint8_t { space, letter, digit, other };

constexpr std::array<Kind, 256> kinds() {
  std::array<Kind, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte >= 0x80;
    const bool digit = byte >= '0' && byte <= '9';
    const bool space = byte == ' ' || (byte >= '\t' && byte <= '\r');
    table[byte] = space ? Kind::space : letter ? Kind::letter : digit ? Kind::digit : Kind::other;
  }
  return table;
}

constexpr std::array<Kind, 256> kKinds = kinds();

Kind kind(char c) { return kKinds[static_cast<uint8_t>(c)]; }

// Where the run of one kind that begins at `from` ends.
size_t run_end(std::string_view text, size_t from, Kind of) {
  while (from < text.size() && kind(text[from]) == of) ++from;
  return from;
}

size_t contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && text[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

// GPT-2's pattern, tried in this order: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t first_word(std::string_view text) {
  if (text[0] == '\'') {
    if (const size_t length = contraction(text)) return length;
  }
  const size_t start = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  if (kind(text[start]) != Kind::space) return run_end(text, start, kind(text[start]));
  const size_t end = run_end(text, 0, Kind::space);
  return end == text.size() || end == 1 ? end : end - 1;
}

bool is_border(char before, char after) { return kind(before) != Kind::space && kind(after) == Kind::space; }

}  // namespace cairn::data
