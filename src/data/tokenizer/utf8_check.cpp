#include "data/tokenizer/utf8_check.h"

#include <cstdint>
#include <cstring>

#include "base/text.h"

namespace cairn::data {

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
    const size_t length = base::utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

}  // namespace cairn::data
