#include "data/corpus/source_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include <glob.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/text.h"
#include "data/corpus/file_reader.h"
#include "data/corpus/llmc_file.h"
#include "data/corpus/text_encoding.h"
#include "data/corpus/token_file.h"

namespace cairn::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 5> kFormats = {"text", "jsonl", "json", "llmc", "cairn"};
constexpr std::array<std::string_view, 10> kEndings = {".txt",  ".text", ".md",     ".jsonl",   ".ndjson",
                                                       ".json", ".bin",  ".tokens", ".parquet", ".gz"};

struct Foreign {
  std::string_view magic;
  std::string_view what;
  std::string_view advice;
};
constexpr std::array<Foreign, 6> kForeign = {{
    {"PAR1", "a parquet file, which is not read",
     "convert it: python3 -c \"import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" "
     "IN.parquet OUT.jsonl"},
    {"\x1f\x8b", "compressed with gzip", "unpack it: gunzip -k FILE"},
    {"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it: zstd -d FILE"},
    {"PK\x03\x04", "a zip archive", "unpack it: unzip FILE"},
    {"ARROW1", "an Arrow file, which is not read", "convert it to JSON lines"},
    {"BIN.TOK\n", "a token file of LLMQ, which is not read", "give the text it was made from, or llm.c's .bin files"},
}};

std::string lower_ending(const std::string& path) {
  std::string ending = fs::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

std::string head_of(FileReader& file) {
  std::string head(4096, '\0');
  head.resize(file.read(head.data(), head.size()));
  return head;
}

SourceFile look_at(const std::string& path, const std::string& format, const std::string& key) {
  try {
    FileReader file(path);
    const std::string head = head_of(file);
    SourceFile found{.path = path, .format = Format::text, .bytes = file.stamp().bytes};
    if (format == "auto") {
      found.format = detect_format(path, head);
    } else {
      const auto at = std::find(kFormats.begin(), kFormats.end(), format);
      if (at == kFormats.end()) base::fail_unknown("data.format", format, format_names());
      found.format = static_cast<Format>(at - kFormats.begin());
    }
    if (!found.holds_tokens())
      if (const std::string encoding = wide_encoding(head); !encoding.empty()) refuse_encoding(key, path, encoding);
    return found;
  } catch (Error& error) {
    if (error.sentence().find(path) == std::string::npos) throw error.with(key + " = " + path);
    throw;
  }
}

std::vector<std::string> files_in(const std::string& folder, const std::string& key, std::vector<std::string>* skipped) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename().string().starts_with(".")) {
      if (at->is_directory(error)) at.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    const bool known = std::find(kEndings.begin(), kEndings.end(), lower_ending(at->path())) != kEndings.end();
    if (known && at->file_size(ignored) > 0)
      paths.push_back(at->path().string());
    else if (skipped)
      skipped->push_back(at->path().lexically_relative(folder).string());  // a link by its own name
  }
  if (error) base::fail_input("{} = {}: the folder cannot be read: {}", key, folder, error.message());
  if (paths.empty())
    base::fail_input(
        "{} = {}: a folder without data files; files in a folder are read if their names end in .txt, .text, .md, .jsonl, "
        ".ndjson, .json, .bin or .tokens: name others one by one, or by a pattern",
        key, folder);
  return paths;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (std::error_code ignored; !fs::is_directory(found.gl_pathv[i], ignored)) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return paths;
}

}  // namespace

const char* name(Format format) { return kFormats[static_cast<size_t>(format)]; }

std::vector<std::string> format_names() {
  std::vector<std::string> names = {"auto"};
  names.insert(names.end(), kFormats.begin(), kFormats.end());
  return names;
}

Format detect_format(const std::string& path, std::string_view head) {
  for (const Foreign& foreign : kForeign)
    if (head.starts_with(foreign.magic)) base::fail_input("{}: {}; {}", path, foreign.what, foreign.advice);
  if (is_token_file(head)) return Format::cairn;
  if (is_llmc_file(head)) return Format::llmc;
  const std::string ending = lower_ending(path);
  if (ending == ".jsonl" || ending == ".ndjson") return Format::jsonl;
  if (ending == ".json") {
    const size_t first = head.find_first_not_of("\xef\xbb\xbf \t\r\n");
    return first != std::string_view::npos && head[first] == '[' ? Format::json : Format::jsonl;
  }
  if (ending == ".csv" || ending == ".tsv")
    base::fail_input(
        "{}: a table ({}), which is not read as text. Convert it: python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row in "
        "csv.DictReader(sys.stdin{})]\" < {} > NEW.jsonl, and name its column with data.text_field",
        path, ending == ".csv" ? "CSV" : "TSV", ending == ".csv" ? "" : ", delimiter='\\t'", path);
  if (ending == ".bin" || ending == ".tokens") {
    base::fail_input(
        "{}: a binary file that is neither a token shard of llm.c (it would begin with 20240520 or 20240801) nor one of Cairn "
        "(\"{}\"); give a plain UTF-8 text file, or say what it is with data.format",
        path, kTokenFileMagic);
  }
  return Format::text;
}

std::string describe_skipped(const std::string& origin, std::vector<std::string> skipped) {
  if (skipped.empty()) return "";
  constexpr size_t kNamed = 3;
  std::sort(skipped.begin(), skipped.end());
  std::string words = fmt::format("{}: {} in the folder {} not read, by name or because {} empty: ", origin,
                                  base::plural(static_cast<int64_t>(skipped.size()), "file"), skipped.size() == 1 ? "is" : "are",
                                  skipped.size() == 1 ? "it is" : "they are");
  for (size_t i = 0; i < std::min(skipped.size(), kNamed); ++i) words += (i == 0 ? "" : ", ") + skipped[i];
  return words + (skipped.size() > kNamed ? ", …" : "");
}

std::vector<SourceFile> find_files(const std::string& path, const std::string& format, const std::string& key,
                                   std::vector<std::string>* skipped) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  std::vector<std::string> paths = {path};
  if (fs::is_directory(status)) {
    paths = files_in(path, key, skipped);
  } else if (!fs::exists(status)) {
    paths = matches_of(path);
    if (paths.empty() && path.find_first_of("*?[") != std::string::npos)
      base::fail_input("{} = {}: no file matches this pattern", key, path);
    if (paths.empty())
      base::fail_input(
          "{} = {}: no such file; give a file, a folder or a pattern like texts/*.jsonl, or no data.path for the built-in stories", key,
          path);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<SourceFile> files;
  for (const std::string& one : paths) files.push_back(look_at(one, format, key));
  int64_t bytes = 0;
  for (const SourceFile& file : files) bytes += file.bytes;
  if (bytes == 0)
    base::fail_input("{} = {}: the file is empty; give a file with text in it, or no data.path for the built-in stories", key, path);
  return files;
}

}  // namespace cairn::data
