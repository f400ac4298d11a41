#pragma once
#include "comm/collectives/collectives.h"

namespace cairn::comm {

inline constexpr int kRollCallOfAll = 8;  // up to this many ranks, every rank hears from every other one

// The roll call of a device operation (NCCL): empty host messages by which each rank says that it is in this operation. They carry the
// operation's signature, so that a rank that called something else, or nothing, is found and named, which NCCL itself cannot do. The device
// does not wait for it. Up to kRollCallOfAll ranks every rank tells every other one; beyond, each tells the next.
Coroutine roll_call(Exchange& exchange, const Arguments& arguments);
Coroutine roll_call_sender(Exchange& exchange, const Arguments& arguments);    // of a send
Coroutine roll_call_receiver(Exchange& exchange, const Arguments& arguments);  // of a recv

}  // namespace cairn::comm
