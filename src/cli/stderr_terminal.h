#pragma once
#include <memory>

namespace cairn::base {
class Terminal;
}

namespace cairn::cli {

// Standard error as a terminal: shows progress while standard output carries the result.
std::shared_ptr<base::Terminal> stderr_terminal();

}  // namespace cairn::cli
