#pragma once
#include <string>

namespace cairn::base {

// "0.1.0", as CMakeLists.txt says.
std::string version();

// The build id that the linker gave this program, in hex; it changes with the code. "unknown" where there is none.
std::string build_id();

}  // namespace cairn::base
