#pragma once
#include <memory>

namespace cairn::base {
class Terminal;
}

namespace cairn::cli {

// Standard error as a terminal: where progress is shown while standard output is kept for the result.
std::shared_ptr<base::Terminal> stderr_terminal();

}  // namespace cairn::cli
