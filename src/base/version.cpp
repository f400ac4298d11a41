#include "base/version.h"

namespace cairn::base {

std::string version() { return CAIRN_VERSION; }

}  // namespace cairn::base
