#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "tidy/source.h"

namespace cairn::tidy {

// Objects to each word of `banned` in code, unless the file's path begins with one of `allowed`.
inline Findings ban(const Source& source, std::initializer_list<std::string_view> banned, std::initializer_list<std::string_view> allowed,
                    std::string_view advice) {
  Findings found;
  for (std::string_view start : allowed) {
    if (starts_with(source.path, start)) return found;
  }
  const std::string text = blank(source.text, Keep::code_only);
  for (std::string_view word : banned) {
    for (size_t at : find_word(text, word)) {
      const size_t line = text.rfind('\n', at) + 1;  // npos + 1 is the beginning
      if (starts_with(std::string_view(text).substr(line), "#include")) continue;
      found.push_back(finding(source, at, std::string(word) + ": " + std::string(advice)));
    }
  }
  return found;
}

inline bool is_library(const Source& source) { return is_code(source) && starts_with(source.path, "src/"); }

inline Findings reads_the_environment_in_cli_alone(const Source& source) {
  if (!is_library(source)) return {};
  return ban(source, {"getenv", "secure_getenv"}, {"src/cli/"}, "only cli reads the environment; hand the value down");
}

inline Findings prints_through_the_log(const Source& source) {
  if (!is_library(source)) return {};
  return ban(source, {"printf", "fprintf", "vprintf", "puts", "putchar", "cout", "cerr"},
             {"src/cli/", "src/base/log.", "src/base/progress.", "src/base/terminal."}, "library code does not print; use the world's log");
}

inline Findings draws_numbers_from_base_random(const Source& source) {
  if (!is_code(source)) return {};
  if (!starts_with(source.path, "src/"))
    return ban(source, {"srand", "random_device"}, {}, "not repeatable; use base/random.h or a fixed seed");
  return ban(source, {"rand", "srand", "drand48", "mt19937", "mt19937_64", "minstd_rand", "default_random_engine", "random_device"}, {},
             "draw counter-based numbers from base/random.h");
}

inline Findings asks_the_world_for_the_time(const Source& source) {
  if (!is_library(source)) return {};
  return ban(source, {"system_clock", "gettimeofday"}, {"src/base/clock."}, "take a base::Clock&");
}

// A call of sleep(…) as a member of something of ours is another thing.
inline Findings never_sleeps(const Source& source) {
  if (!is_code(source)) return {};
  Findings found =
      ban(source, {"sleep_for", "sleep_until", "usleep", "nanosleep"}, {}, "wait on a condition or the clock, with a deadline");
  const std::string text = blank(source.text, Keep::code_only);
  for (size_t at : find_word(text, "sleep")) {
    const bool member = at > 0 && (text[at - 1] == '.' || text[at - 1] == '>');
    if (!member && text.substr(at + 5, 1) == "(")
      found.push_back(finding(source, at, "sleep: wait on a condition or the clock, with a deadline"));
  }
  return found;
}

}  // namespace cairn::tidy
