// Regular expressions over Unicode text, for pre-tokenizer patterns without a scanner in word_split.h.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::data {

// A compiled pattern (PCRE2, Unicode classes). Immutable: threads may share one. \s means Unicode's White_Space, as in the regex engine of
// the `tokenizers` library. Characters newer than PCRE2's Unicode tables have no class.
class RegularExpression {
 public:
  // Refuses a pattern that does not compile, with `name` and the reason.
  RegularExpression(const std::string& pattern, const std::string& name);
  ~RegularExpression();
  RegularExpression(RegularExpression&&) noexcept;

  struct Match {
    size_t begin = 0, end = 0;
  };
  // The first match at or after `from`. Refuses a text on which the pattern backtracks too much.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
  std::string name_;
};

}  // namespace cairn::data
