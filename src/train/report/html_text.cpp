#include "train/report/html_text.h"

#include "base/text.h"

namespace cairn::train {
namespace {

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
    const size_t length = base::utf8_length(text);
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
