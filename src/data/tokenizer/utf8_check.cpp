#include "data/tokenizer/utf8_check.h"

#include <cstdint>
#include <cstring>

namespace cairn::data {

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const int lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = lead == 0xe0 ? byte(1) >= 0xa0 : lead != 0xed || byte(1) < 0xa0;
    return second && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = lead == 0xf0 ? byte(1) >= 0x90 : lead != 0xf4 || byte(1) < 0x90;
    return second && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

size_t first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (at + 8 <= text.size()) {  // eight bytes of ASCII at a time
      uint64_t eight;
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += 8;
        continue;
      }
    }
    const size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

}  // namespace cairn::data
