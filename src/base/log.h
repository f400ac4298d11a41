#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cairn::base {

class Terminal;

enum class Level { debug, info, warn, error };
Level level_from(std::string_view name);  // "debug", "info", "warn", "error"; anything else is bad_input

struct LogOptions {
  int rank = 0;
  Level level = Level::info;                // below it nothing is written anywhere
  std::shared_ptr<Terminal> terminal = {};  // none: not shown
  std::filesystem::path file = {};          // empty: none; else appended to
  bool all_ranks_on_terminal = false;       // otherwise ranks above 0 show only warnings and errors there
};

// One line per event, facts as key=value. Adds time and rank, and decides which ranks are shown; callers never test their rank before they
// log. Thread-safe. If a write to the file fails, the line is lost and the run goes on.
class Log {
 public:
  explicit Log(LogOptions options);
  static Log quiet();                                            // drops everything
  static Log capture(int rank = 0, Level level = Level::debug);  // keeps its lines: "[0] warn: text"
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (is_enabled(Level::debug)) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (is_enabled(Level::info)) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    if (is_enabled(Level::warn)) write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    if (is_enabled(Level::error)) write(Level::error, fmt::format(format, std::forward<Args>(args)...));
  }

  bool is_enabled(Level level) const;  // whether a line of this level would be written anywhere
  void write(Level level, const std::string& text);
  std::vector<std::string> lines() const;  // of a capturing log; else empty

 private:
  struct Sinks;
  explicit Log(std::unique_ptr<Sinks> sinks);
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace cairn::base
