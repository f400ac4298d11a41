// Where text comes from: documents read from a file, or the built-in stories.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data {

// Texts that know nothing of each other, kept in one buffer.
struct Documents {
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::string origin;  // for messages: "data.path = poems.txt", "the built-in stories"
  std::string text;
  std::vector<Span> spans;  // in order, not empty; what lies between them belongs to no document

  int64_t size() const { return static_cast<int64_t>(spans.size()); }
  std::string_view operator[](int64_t index) const;
};

// The documents of a text file: what stands between kEndOfText markers (line breaks around a marker are dropped), or the whole
// file as one document. Refused: no such file, a folder, an empty file, a file that is not text.
Documents read_text(const std::string& path);

// At least `bytes` of built-in stories, one document each.
Documents tell_stories(uint64_t seed, int64_t bytes);

}  // namespace cairn::data
