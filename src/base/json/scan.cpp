#include "base/json/scan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace cairn::base {
namespace {

constexpr int64_t kWordBytes = 1000;  // of a number, true, false or null
// What a value of each kind takes in nlohmann's tree, allocations included.
constexpr int64_t kListBytes = 80, kValueBytes = 16, kKeyBytes = 96, kStringBytes = 32, kShortString = 15;

// What another encoding than UTF-8 begins with, or nothing.
std::string foreign_beginning(std::string_view text) {
  if (text.empty()) return "it is empty";
  if (text.starts_with("\xef\xbb\xbf")) return "it begins with a byte order mark: save it as UTF-8 without one";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "it is in UTF-16 or UTF-32: save it as UTF-8";
  return {};
}

// Where the string that begins at `at`, a quotation mark, ends: its closing mark, or the text's end.
size_t string_end(std::string_view text, size_t at) {
  ++at;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at, text.size());
}

}  // namespace

JsonScan scan_json(std::string_view text, const JsonLimits& limits) {
  if (std::string foreign = foreign_beginning(text); !foreign.empty()) return {.trouble = std::move(foreign)};
  int depth = 0;
  int64_t tree = kValueBytes;
  int64_t word = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    switch (c) {
      case '"': {
        const size_t end = string_end(text, at);
        const auto bytes = static_cast<int64_t>(end - at) - 1;
        if (end == text.size()) return {.trouble = fmt::format("a string begins at byte {} and has no end", at + 1)};
        if (bytes > limits.string_bytes)
          return {.trouble = fmt::format("a string of {} at byte {}: at most {} are read", human_bytes(bytes), at + 1,
                                         human_bytes(limits.string_bytes))};
        tree += kStringBytes + (bytes > kShortString ? bytes + kValueBytes : 0);
        at = end;
        word = 0;
        break;
      }
      case '[':
      case '{':
        tree += kListBytes;
        word = 0;
        if (++depth > limits.depth)
          return {.too_deep = true, .trouble = fmt::format("nested more than {} deep, at byte {}", limits.depth, at + 1)};
        break;
      case ']':
      case '}':
        --depth;
        word = 0;
        break;
      case ',':
        tree += kValueBytes;
        word = 0;
        break;
      case ':':
        tree += kKeyBytes;
        word = 0;
        break;
      case ' ':
      case '\t':
      case '\r':
      case '\n':
        word = 0;
        break;
      case '\0':
        return {.trouble = fmt::format("a NUL byte at byte {}: not JSON", at + 1)};
      default:
        if (++word > kWordBytes)
          return {.trouble = fmt::format("a number or word of more than {} characters, up to byte {}", kWordBytes, at + 1)};
    }
    if (tree > limits.tree_bytes)
      return {.trouble = fmt::format("so many values that they would take more than {} of memory, at byte {}",
                                     human_bytes(limits.tree_bytes), at + 1)};
  }
  return {};
}

}  // namespace cairn::base
