#include "cli/text/streaming_text.h"

#include <algorithm>

namespace cairn::cli {
namespace {

// The length of the longest suffix of `text` that is a proper prefix of a stop string.
size_t begun(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops)
    for (size_t length = std::min(stop.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
  return longest;
}

}  // namespace

size_t incomplete_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation byte
    const size_t length = byte >= 0xF0 && byte < 0xF8 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return byte < 0xF8 && length > back ? back : 0;
  }
  return 0;
}

std::string StreamingText::add(std::string_view piece) {
  if (stopped_) return {};
  const size_t before = text_.size();
  text_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop, before < stop.size() ? 0 : before - stop.size() + 1));
  if (end != std::string::npos) {
    stopped_ = true;
    text_.resize(end);
    return rest();
  }
  const std::string_view open = std::string_view(text_).substr(0, text_.size() - begun(text_, stops_));
  return show_up_to(open.size() - incomplete_bytes(open));
}

std::string StreamingText::rest() { return show_up_to(text_.size()); }

std::string StreamingText::show_up_to(size_t end) {
  if (end <= shown_) return {};
  std::string now = text_.substr(shown_, end - shown_);
  shown_ = end;
  return now;
}

}  // namespace cairn::cli
