#pragma once
#include <vector>

#include "comm/net.h"

namespace cairn::comm {

// Connects this rank with all others: calls those below it, is called by those above it. One connected socket per rank (-1 for itself),
// each end known to have the run's key. Throws naming who did not come. The listening socket is closed afterwards.
std::vector<int> meet(const NetSetup& setup, const NetOptions& options);

}  // namespace cairn::comm
