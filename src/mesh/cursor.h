#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

namespace cairn::mesh {

// Parses a short text from left to right and skips blanks. An unexpected token is refused with the whole text and the place.
class Cursor {
 public:
  Cursor(std::string_view what, std::string_view text) : what_(what), text_(text) {}

  bool at_end() {
    skip_blanks();
    return at_ == text_.size();
  }

  // Consumes `token` if it comes next.
  bool accept(std::string_view token) {
    skip_blanks();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) fail(token);
  }

  // A word of [A-Za-z0-9_]; may be empty.
  std::string_view word() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && (is_digit(text_[at_]) || is_letter(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  int64_t number() {
    skip_blanks();
    int64_t value = 0;
    const auto [end, status] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (status != std::errc()) fail("a whole number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  [[noreturn]] void fail(std::string_view expected) {
    skip_blanks();
    base::fail_input("{} \"{}\": expected {} at \"{}\"", what_, text_, expected, text_.substr(at_));
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  std::string_view what_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace cairn::mesh
