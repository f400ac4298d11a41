#include "train/report/html_text.h"

namespace cairn::train {
namespace {

// The length of the valid UTF-8 sequence at the start of `text`; 0 where there is none. Overlong forms, surrogates and values beyond
// U+10FFFF are not valid (RFC 3629, section 4).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](size_t i, unsigned low = 0x80, unsigned high = 0xbf) { return byte(i) >= low && byte(i) <= high; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) return tail(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && tail(2) ? 3 : 0;
  if (first >= 0xf0 && first <= 0xf4)
    return tail(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && tail(2) && tail(3) ? 4 : 0;
  return 0;
}

void append_ascii(std::string& out, char c) {
  switch (c) {
    case '&':
      out += "&amp;";
      break;
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '"':
      out += "&quot;";
      break;
    case '\'':
      out += "&#39;";
      break;
    default:
      if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') {
        if (c != 0x7f) out += c;
      }
  }
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (length == 1) {
      append_ascii(out, text.front());
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace cairn::train
