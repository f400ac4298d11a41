#pragma once
#include <fmt/format.h>

#include "base/error.h"

namespace cairn::base {

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& values);

// Throws bad input: `fail_input("data.path = {}: no such file", path)`.
template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::bad_input, fmt::format(format, std::forward<Args>(args)...));
}

// Throws corrupt_file.
[[noreturn]] void fail_corrupt(const std::string& path, const std::string& reason);

}  // namespace cairn::base

// States an invariant of the code; stays on in release. Bad input is never a check.
#define CAIRN_CHECK(condition, ...)                                                        \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::cairn::base::fail_check(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
