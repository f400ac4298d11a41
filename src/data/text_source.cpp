#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "data/source.h"
#include "data/tokenizer.h"

namespace cairn::data {
namespace {

constexpr int64_t kFileBytes = int64_t{1} << 40;

// Bytes of the character that begins at `at` if it is well-formed UTF-8 (Unicode 15, table 3-7), else 0.
size_t character_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const int lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = lead == 0xe0 ? byte(1) >= 0xa0 : lead != 0xed || byte(1) < 0xa0;
    return second && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = lead == 0xf0 ? byte(1) >= 0x90 : lead != 0xf4 || byte(1) < 0x90;
    return second && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Refuses what is not text: a NUL byte anywhere, or bytes that are mostly no UTF-8 beyond ASCII (a text in an old 8-bit
// encoding is let through if most of it is ASCII).
void check_text(std::string_view text, const std::string& path) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    base::fail_input("data.path = {}: a binary file (a NUL byte at offset {}); give a plain UTF-8 text file", path, nul);
  const std::string_view head = text.substr(0, 1 << 20);
  size_t wrong = 0;
  size_t first_wrong = 0;
  for (size_t at = 0; at < head.size();) {
    const size_t length = character_length(text, at);
    if (length == 0 && wrong++ == 0) first_wrong = at;
    at += length == 0 ? 1 : length;
  }
  if (wrong * 10 > head.size())
    base::fail_input("data.path = {}: a binary file ({:.0f} % of it is not UTF-8, first at offset {}); give a plain UTF-8 text file", path,
                     100.0 * static_cast<double>(wrong) / static_cast<double>(head.size()), first_wrong);
}

bool is_line_break(char c) { return c == '\n' || c == '\r'; }

}  // namespace

Documents read_text(const std::string& path) {
  Documents documents;
  documents.origin = "data.path = " + path;
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found)
    base::fail_input("data.path = {}: no such file; give the path of a text file, or no data.path for the built-in stories", path);
  if (std::filesystem::is_directory(status)) base::fail_input("data.path = {}: a folder; give the path of one text file", path);
  try {
    documents.text = base::read_file(path, kFileBytes);
  } catch (Error& error) {
    throw error.with("data.path = " + path);
  }
  const std::string_view text = documents.text;
  if (text.empty()) base::fail_input("data.path = {}: the file is empty; give a text file, or no data.path for the built-in stories", path);
  check_text(text, path);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t marker = std::min(text.find(kEndOfText, begin), text.size());
    const size_t next = marker + kEndOfText.size();
    size_t end = marker;
    if (begin > 0) {
      while (begin < end && is_line_break(text[begin])) ++begin;
    }
    if (marker < text.size()) {
      while (end > begin && is_line_break(text[end - 1])) --end;
    }
    if (end > begin) documents.spans.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    begin = next;
  }
  if (documents.spans.empty()) base::fail_input("data.path = {}: nothing but {} markers; give a file with text in it", path, kEndOfText);
  return documents;
}

}  // namespace cairn::data
