#include "data/source.h"

#include "base/check.h"
#include "data/stories.h"

namespace cairn::data {

std::string_view Documents::operator[](int64_t index) const {
  CAIRN_CHECK(index >= 0 && index < size(), "document {} of {}", index, size());
  const Span& span = spans[index];
  return std::string_view(text).substr(span.begin, span.end - span.begin);
}

Documents tell_stories(uint64_t seed, int64_t bytes) {
  Documents documents;
  documents.origin = "the built-in stories";
  documents.text.reserve(bytes + 4096);
  for (int64_t index = 0; static_cast<int64_t>(documents.text.size()) < bytes; ++index) {
    const auto begin = static_cast<int64_t>(documents.text.size());
    append_story(seed, index, documents.text);
    documents.spans.push_back({begin, static_cast<int64_t>(documents.text.size())});
  }
  return documents;
}

}  // namespace cairn::data
