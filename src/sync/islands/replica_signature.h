#pragma once
#include <cstdint>

#include "sync/sync.h"

namespace cairn::sync {

// A hash of the rule, the model and, in one world, this rank's shards: identical on all islands whose messages fit together.
uint64_t signature_of(const SyncOptions& options, const Replica& replica);

// The longest message that a rule sends, in bytes: three times what this rank holds in fp32, and a header.
int64_t max_message_bytes(const Replica& replica);

// Whether this rank's parameters are on a GPU.
bool is_on_gpu(const Replica& replica);

}  // namespace cairn::sync
