#pragma once
#include <string>

namespace cairn::base {

// "0.1.0", as CMakeLists.txt says.
std::string version();

// The linker's name for this very program, in hex: another one after any change of its code. "unknown" where it has none.
std::string build_id();

}  // namespace cairn::base
