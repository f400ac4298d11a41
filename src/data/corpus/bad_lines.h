// Lines of data files that cannot be used: either the first one is refused, or all are skipped and counted.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

struct BadLine {
  int64_t line = 0;  // from 1
  std::string why;   // "invalid JSON at byte 17"
};

// The bad lines of one source: their number, and the first few as "chat.jsonl:17: invalid JSON at byte 3".
struct BadLines {
  static constexpr size_t kNamed = 5;
  int64_t count = 0;
  std::vector<std::string> named;

  void add(const std::string& path, const BadLine& bad);
  void add(const BadLines& more);
  std::string summary() const;  // "3 bad lines were skipped: a.jsonl:2: …; a.jsonl:9: …"; empty for 0 lines
};

// Throws bad_input for one bad line, with the remedy.
[[noreturn]] void refuse(const std::string& path, const BadLine& bad);

}  // namespace cairn::data
