#pragma once
#include <cstdint>

#include "sync/sync.h"

namespace cairn::sync {

// Alike where rule, model and this rank's shard of it are: what peers must have in common for their messages to fit.
uint64_t signature_of(const SyncOptions& options, const Replica& replica);

// The longest message that a rule has a use for: a few times everything that this rank keeps.
int64_t max_message_bytes(const Replica& replica);

// Whether what this rank trains lies there.
bool is_on_gpu(const Replica& replica);

}  // namespace cairn::sync
