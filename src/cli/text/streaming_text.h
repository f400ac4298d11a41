#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// Streams a generated text piece by piece. It holds back an incomplete UTF-8 character, and the beginning of a possible stop string.
class StreamingText {
 public:
  explicit StreamingText(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Adds a piece and returns the text that can be shown now.
  std::string add(std::string_view piece);
  // The text still held back; call it once at the end.
  std::string rest();

  bool stopped() const { return stopped_; }          // a stop string was found
  const std::string& text() const { return text_; }  // the whole text, without the stop string

 private:
  std::string show_up_to(size_t end);

  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

// The number of bytes at the end of a text that begin a UTF-8 character without completing it: 0 to 3.
size_t incomplete_bytes(std::string_view text);

}  // namespace cairn::cli
