#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// A text that grows by pieces, shown as it grows: a character that is not complete yet is held back, and so is what may become one of the
// strings that end the text.
class StreamingText {
 public:
  explicit StreamingText(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Adds a piece; gives back what may be shown now.
  std::string add(std::string_view piece);
  // At the end: what was held back.
  std::string rest();

  bool stopped() const { return stopped_; }          // one of the strings has come
  const std::string& text() const { return text_; }  // all of it, up to that string

 private:
  std::string show_up_to(size_t end);

  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

// The bytes at the end of a text that begin a character of UTF-8 and do not complete it: 0 to 3.
size_t incomplete_bytes(std::string_view text);

}  // namespace cairn::cli
