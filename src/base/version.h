#pragma once
#include <string>

namespace cairn::base {

// "0.1.0", as CMakeLists.txt says.
std::string version();

}  // namespace cairn::base
