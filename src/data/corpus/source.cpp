#include "data/corpus/source.h"

#include <algorithm>

#include "base/check.h"
#include "data/options.h"
#include "data/stories/stories.h"

namespace cairn::data {

std::string_view Documents::operator[](int64_t index) const {
  CAIRN_CHECK(index >= 0 && index < size(), "document {} of {}", index, size());
  const Span& span = spans[static_cast<size_t>(index)];
  return std::string_view(text).substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
}

Documents generate_stories(uint64_t seed, int64_t bytes) {
  Documents documents;
  documents.origin = "the built-in stories";
  documents.text.reserve(static_cast<size_t>(bytes + 4096));
  for (int64_t index = 0; static_cast<int64_t>(documents.text.size()) < bytes; ++index) {
    const auto begin = static_cast<int64_t>(documents.text.size());
    append_story(seed, index, documents.text);
    documents.spans.push_back({begin, static_cast<int64_t>(documents.text.size())});
  }
  return documents;
}

bool Source::holds_text() const {
  return in_memory || std::any_of(files.begin(), files.end(), [](const SourceFile& file) { return !file.holds_tokens(); });
}

int64_t Source::bytes() const {
  if (in_memory) return static_cast<int64_t>(in_memory->text.size());
  int64_t sum = 0;
  for (const SourceFile& file : files) sum += file.bytes;
  return sum;
}

namespace {

Source find_source(const std::string& path, const std::string& format, const std::string& key) {
  Source source{.origin = key + " = " + path, .files = {}};
  source.files = find_files(path, format, key, &source.skipped);
  return source;
}

}  // namespace

std::vector<Source> find_sources(const DataOptions& data) {
  if (!data.path.empty() && !data.sources.empty())
    base::fail_input("data.path = {} and data.sources are both given: put the path among the sources", data.path);
  if (!data.weights.empty() && data.weights.size() != data.sources.size())
    base::fail_input("data.weights has {} numbers for {} sources: give one for each of data.sources, or none", data.weights.size(),
                     data.sources.size());
  std::vector<Source> sources;
  for (const std::string& path : data.sources) {
    const std::string key = fmt::format("data.sources[{}]", sources.size());
    sources.push_back(find_source(path, data.format, key));
  }
  if (!data.path.empty()) sources.push_back(find_source(data.path, data.format, "data.path"));
  if (sources.empty()) {
    if (data.needs().built_in.empty())
      base::fail_input("data.kind = {}: set data.path to a file of records with {}", data.kind, data.needs().records);
    auto in_memory = std::make_shared<const Documents>(generate_stories(static_cast<uint64_t>(data.stories_seed), data.stories_bytes));
    sources.push_back({.origin = in_memory->origin, .files = {}, .in_memory = in_memory});
  }
  return sources;
}

}  // namespace cairn::data
