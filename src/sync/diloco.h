#pragma once
#include <memory>

#include "sync/sync.h"

namespace cairn::sync {

// Islands step alone; now and then, what each has moved by since the last common point (the anchor) is averaged and taken as a gradient by
// an outer optimizer with Nesterov momentum, whose result is the new anchor. The anchor is the model: the same bits on every island.
//
// "diloco": the whole model at once, every so many steps; islands wait for it and go on from the new anchor. "streaming_diloco": fragment
// by fragment, one at a time, while they train on; what arrives `delay` steps later is blended into what they have by then.
std::unique_ptr<Sync> make_diloco(const SyncOptions& options, Replica replica);

}  // namespace cairn::sync
