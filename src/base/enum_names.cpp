#include "base/enum_names.h"

#include "base/check.h"

namespace cairn::base {

void fail_unnamed(int64_t value) { throw Error(Error::Kind::broken_invariant, fmt::format("value {} of an enum has no name", value)); }

}  // namespace cairn::base
