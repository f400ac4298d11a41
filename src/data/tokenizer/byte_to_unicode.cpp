#include "data/tokenizer/byte_to_unicode.h"

#include <array>
#include <cstdint>

namespace cairn::data {
namespace {

// Bytes that print stand for themselves; the others take the code points from 256 on, in order.
constexpr bool prints(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

constexpr int kOthers = 68;  // bytes that do not print

struct Table {
  std::array<uint16_t, 256> letter{};         // byte -> code point
  std::array<int16_t, 256 + kOthers> byte{};  // code point -> byte, or -1
};

constexpr Table make_table() {
  Table table;
  for (int16_t& byte : table.byte) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int letter = prints(byte) ? byte : next++;
    table.letter[byte] = static_cast<uint16_t>(letter);
    table.byte[letter] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

std::string bytes_to_unicode(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const uint16_t letter = kTable.letter[static_cast<uint8_t>(c)];
    if (letter < 0x80) {
      text += static_cast<char>(letter);
    } else {  // all letters lie below 0x800: two bytes of UTF-8
      text += static_cast<char>(0xc0 | (letter >> 6));
      text += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return text;
}

std::optional<std::string> unicode_to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned letter = static_cast<uint8_t>(text[i]);
    if (letter >= 0x80) {
      if ((letter & 0xe0) != 0xc0 || i + 1 == text.size()) return std::nullopt;
      const unsigned low = static_cast<uint8_t>(text[++i]);
      if ((low & 0xc0) != 0x80) return std::nullopt;
      letter = (letter & 0x1f) << 6 | (low & 0x3f);
    }
    if (letter >= kTable.byte.size() || kTable.byte[letter] < 0) return std::nullopt;
    bytes += static_cast<char>(kTable.byte[letter]);
  }
  return bytes;
}

}  // namespace cairn::data
