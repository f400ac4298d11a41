#include "base/check.h"

#include <string_view>

namespace cairn::base {

void fail_check(const char* condition, const char* file, int line, const std::string& values) {
  std::string_view path = file;
  if (const auto at = path.rfind("src/"); at != std::string_view::npos) path.remove_prefix(at + 4);
  throw Error(Error::Kind::broken_invariant,
              fmt::format("{}: `{}` does not hold at {}:{}; this is a bug in Cairn", values, condition, path, line));
}

void fail_corrupt(const std::string& path, const std::string& reason) {
  throw Error(Error::Kind::corrupt_file, fmt::format("{}: {}", path, reason));
}

}  // namespace cairn::base
