#pragma once
#include <memory>

#include "sync/sync.h"

namespace cairn::sync {

// Every step, every gradient is summed over the peers, in buckets, while backward still runs. A sum, because the loss is
// already divided by the global token count.
std::unique_ptr<Sync> make_all_reduce(const SyncOptions& options, Replica replica);

}  // namespace cairn::sync
