// Regular expressions over Unicode text, for patterns that have no scanner of their own.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::data {

// A compiled pattern (PCRE2, Unicode classes). Immutable: one may serve many threads. \s means Unicode's White_Space, as in the
// engine that tokenizer.json files are written for. Characters newer than the library's Unicode tables have no class.
class RegularExpression {
 public:
  // Refuses a pattern that does not compile, with `name` and where it goes wrong.
  RegularExpression(const std::string& pattern, const std::string& name);
  ~RegularExpression();
  RegularExpression(RegularExpression&&) noexcept;

  struct Match {
    size_t begin = 0, end = 0;
  };
  // The first match at or after `from`. A text on which the pattern needs too many tries is refused.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
  std::string name_;
};

}  // namespace cairn::data
