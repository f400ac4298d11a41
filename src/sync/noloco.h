#pragma once
#include <memory>

#include "sync/sync.h"

namespace cairn::sync {

// In every round each island talks with the few others of a group that is drawn anew, and nobody with all. What the group has moved by on
// average goes into a momentum, and each island is pulled towards the mean of its group; so the islands stay close without ever being the
// same. A group waits for its own members only; one that is late or lost is done without.
std::unique_ptr<Sync> make_noloco(const SyncOptions& options, Replica replica);

}  // namespace cairn::sync
