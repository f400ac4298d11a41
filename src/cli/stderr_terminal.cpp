#include "cli/stderr_terminal.h"

#include <cstdio>
#include <unistd.h>

#include "base/terminal.h"

namespace cairn::cli {

std::shared_ptr<base::Terminal> stderr_terminal() {
  const auto write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  return std::make_shared<base::Terminal>(write, ::isatty(STDERR_FILENO) == 1);
}

}  // namespace cairn::cli
