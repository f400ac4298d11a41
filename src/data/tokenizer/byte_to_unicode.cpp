#include "data/tokenizer/byte_to_unicode.h"

#include <array>
#include <cstdint>

namespace cairn::data {
namespace {

// Bytes that print stand for themselves; the others take the code points from 256 on, in order.
constexpr bool prints(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

constexpr int kOthers = 68;  // bytes that do not print

struct Table {
  std::array<uint16_t, 256> character{};      // byte -> code point
  std::array<int16_t, 256 + kOthers> byte{};  // code point -> byte, or -1
};

constexpr Table make_table() {
  Table table;
  for (int16_t& byte : table.byte) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = prints(byte) ? byte : next++;
    table.character[byte] = static_cast<uint16_t>(character);
    table.byte[character] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

std::string bytes_to_unicode(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const uint16_t character = kTable.character[static_cast<uint8_t>(c)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {  // all characters lie below 0x800: two bytes of UTF-8
      text += static_cast<char>(0xc0 | (character >> 6));
      text += static_cast<char>(0x80 | (character & 0x3f));
    }
  }
  return text;
}

std::optional<std::string> unicode_to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned character = static_cast<uint8_t>(text[i]);
    if (character >= 0x80) {
      if ((character & 0xe0) != 0xc0 || i + 1 == text.size()) return std::nullopt;
      const unsigned low = static_cast<uint8_t>(text[++i]);
      if ((low & 0xc0) != 0x80) return std::nullopt;
      character = (character & 0x1f) << 6 | (low & 0x3f);
    }
    if (character >= kTable.byte.size() || kTable.byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kTable.byte[character]);
  }
  return bytes;
}

}  // namespace cairn::data
