// A disk that takes everything and keeps nothing: for a rank that only wants to know what it would write.
#pragma once
#include "base/files/disk.h"

namespace cairn::base {

const Disk& nowhere_disk();

}  // namespace cairn::base
