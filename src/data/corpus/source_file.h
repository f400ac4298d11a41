// Finds the files that a path names, and their formats.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data {

// File formats; the words of data.format.
enum class Format {
  text,   // plain text
  jsonl,  // one JSON object a line
  json,   // a list of JSON objects
  llmc,   // llm.c's token shards
  cairn,  // our own
};
const char* name(Format format);
std::vector<std::string> format_names();  // with "auto" first

struct SourceFile {
  std::string path;
  Format format = Format::text;
  int64_t bytes = 0;
  bool holds_tokens() const { return format == Format::llmc || format == Format::cairn; }
};

// The format of a file, from its first bytes and its extension. Formats that Cairn does not read (parquet, compressed files, …) are refused
// with a way to convert them.
Format detect_format(const std::string& path, std::string_view head);

// The files of one source: a file, all data files of a folder and of those in it, or those that match a pattern (texts/*.jsonl); in
// the order of their paths. `format` is a word of data.format; `key` is the recipe key of the path, for errors. In folders, hidden
// files, empty files and files with unknown extensions are skipped; `skipped` gets the names of those that are not hidden. Refused: no file
// at all.
std::vector<SourceFile> find_files(const std::string& path, const std::string& format, const std::string& key,
                                   std::vector<std::string>* skipped = nullptr);

// One line about them: their number and the first names; empty for none.
std::string describe_skipped(const std::string& origin, std::vector<std::string> skipped);

}  // namespace cairn::data
