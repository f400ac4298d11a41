#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "tidy/source.h"

namespace cairn::tidy {

inline constexpr int64_t kPageColumnsMax = 120, kParagraphWordsMax = 90;

// Pages for readers; figures as they were measured may be as wide as they are.
inline bool is_page(const Source& source) {
  return ends_with(source.path, ".md") && !starts_with(source.path, "docs/measurements/") &&
         (starts_with(source.path, "docs/") || source.path.find('/') == std::string::npos);
}

// Characters, not bytes: continuation bytes of UTF-8 are left out.
inline int64_t columns_of(std::string_view line) {
  int64_t columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return columns;
}

inline int64_t words_in(std::string_view line) {
  int64_t words = 0;
  bool inside = false;
  for (const char c : line) {
    const bool space = c == ' ' || c == '\t';
    words += inside && space;
    inside = !space;
  }
  return words + inside;
}

inline Findings keeps_pages_narrow(const Source& source) {
  Findings found;
  if (!is_page(source)) return found;
  size_t begin = 0;
  while (begin < source.text.size()) {
    const size_t end = std::min(source.text.find('\n', begin), source.text.size());
    const int64_t columns = columns_of(std::string_view(source.text).substr(begin, end - begin));
    if (columns > kPageColumnsMax)
      found.push_back(finding(source, begin, std::to_string(columns) + " columns, at most " + std::to_string(kPageColumnsMax)));
    begin = end + 1;
  }
  return found;
}

// A paragraph ends at an empty line, a heading, a list item, a table row or a code block; a list item is a paragraph of its own.
inline Findings keeps_paragraphs_short(const Source& source) {
  Findings found;
  if (!is_page(source)) return found;
  int64_t words = 0;
  size_t first = 0;
  bool code = false;
  const auto close = [&] {
    if (words > kParagraphWordsMax)
      found.push_back(
          finding(source, first, "a paragraph of " + std::to_string(words) + " words, at most " + std::to_string(kParagraphWordsMax)));
    words = 0;
  };
  size_t begin = 0;
  while (begin < source.text.size()) {
    const size_t end = std::min(source.text.find('\n', begin), source.text.size());
    const std::string_view line = std::string_view(source.text).substr(begin, end - begin);
    const size_t start = line.find_first_not_of(' ');
    const std::string_view content = start == std::string_view::npos ? std::string_view() : line.substr(start);
    const bool fence = starts_with(content, "```");
    const size_t number = content.find_first_not_of("0123456789");
    const bool item = starts_with(content, "- ") || starts_with(content, "* ") ||
                      (number != std::string_view::npos && number > 0 && content.substr(number, 2) == ". ");
    if (fence) code = !code;
    if (fence || code || content.empty() || content[0] == '#' || content[0] == '|' || item) close();
    if (!fence && !code && !content.empty() && content[0] != '#' && content[0] != '|') {
      if (words == 0) first = begin;
      words += words_in(content);
    }
    begin = end + 1;
  }
  close();
  return found;
}

}  // namespace cairn::tidy
