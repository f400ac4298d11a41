#pragma once
#include <memory>

#include "sync/sync.h"

namespace cairn::sync {

// Islands step alone, round by round; the mean of where they stand at the end of a round travels while they train the next one, and is
// used at its end. So nobody ever waits, where a round is long enough. What comes so late is divided by how far the islands have gone since
// (the gap), and no number moves further than inner steps could have.
std::unique_ptr<Sync> make_co2(const SyncOptions& options, Replica replica);

}  // namespace cairn::sync
