// Where text comes from: files, or the built-in stories.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/source_file.h"

namespace cairn::data {

// Independent texts in one buffer.
struct Documents {
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::string origin;  // for errors and logs: "the built-in stories"
  std::string text;
  std::vector<Span> spans;  // in order, not empty; bytes between spans belong to no document

  int64_t size() const { return static_cast<int64_t>(spans.size()); }
  std::string_view operator[](int64_t index) const;
};

// At least `bytes` of built-in stories, one document each.
Documents generate_stories(uint64_t seed, int64_t bytes);

// One source of a corpus: files, or documents in memory.
struct Source {
  std::string origin;             // "data.path = poems.txt"
  std::vector<SourceFile> files;  // empty: the text is in_memory
  std::shared_ptr<const Documents> in_memory = {};
  std::vector<std::string> skipped = {};  // files of the folder that are not read

  bool holds_text() const;  // some of it needs tokenizing
  int64_t bytes() const;
};

struct DataOptions;

// The sources that data.path, data.sources and data.format name; the built-in stories where they name none. Refuses missing files and
// weights that do not match the sources.
std::vector<Source> find_sources(const DataOptions& data);

}  // namespace cairn::data
