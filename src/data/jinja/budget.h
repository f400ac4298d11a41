// Limits on what a template may cost, and the current line for errors.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cairn::data::jinja {

inline constexpr int64_t kTemplateBytes = 1 << 20;  // the longest in use have about 30 kB
inline constexpr int64_t kSteps = 10'000'000;       // one per node visited, item copied or 64 bytes of text made: below a second
inline constexpr int64_t kMadeBytes = 192 << 20;    // of texts and lists that one rendering makes
inline constexpr int64_t kWidthMax = 10'000;        // of a text that is padded, and of digits after the point
inline constexpr int kSyntaxDepth = 100;            // nesting of expressions and statements
inline constexpr int kCallDepth = 1000;             // nesting of evaluated nodes, through macros too
inline constexpr int kValueDepth = 100;             // nesting of lists, dicts and other values that hold values

// Counts what parsing and rendering cost, and refuses a template that costs too much. All errors about a template are thrown here, so that
// they name the template and the line. Templates come from outside: a hostile one must neither run for ever nor take all memory.
class TemplateBudget {
 public:
  explicit TemplateBudget(std::string name) : name_(std::move(name)) {}

  void at_line(int line) { line_ = line; }
  int line() const { return line_; }
  int64_t steps() const { return steps_; }

  void step(int64_t count = 1) {
    if ((steps_ += count) > kSteps) fail_steps();
  }
  // Books bytes; call it before allocating them.
  void bytes(size_t count) {
    if (count > static_cast<size_t>(kMadeBytes) || (made_ += static_cast<int64_t>(count)) > kMadeBytes) fail_bytes();
    step(1 + static_cast<int64_t>(count) / 64);
  }

  // Throws bad input: "chat_template, line 3: ...".
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_with(fmt::format(format, std::forward<Args>(args)...));
  }

  // "unknown filter 'trm': did you mean 'trim'?", or the list of what is known.
  [[noreturn]] void fail_unknown(std::string_view what, const std::string& name, const std::vector<std::string>& known) const;

 private:
  [[noreturn]] void fail_with(const std::string& what) const;
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_bytes() const;

  std::string name_;
  int line_ = 1;
  int64_t steps_ = 0;
  int64_t made_ = 0;
};

}  // namespace cairn::data::jinja
