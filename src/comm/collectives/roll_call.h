#pragma once
#include "comm/collectives/collectives.h"

namespace cairn::comm {

inline constexpr int kRollCallOfAll = 8;  // up to so many ranks, each hears from each

// What ranks say to each other, by empty messages through the host, about an operation that their devices do: that they are in it, and in
// the same one. Nobody waits for it before the device begins; it finds who called something else or nothing at all. Up to kRollCallOfAll
// ranks each tells each; beyond, each tells the next.
Coroutine roll_call(Exchange& exchange, const Arguments& arguments);
Coroutine roll_call_sender(Exchange& exchange, const Arguments& arguments);    // of a send
Coroutine roll_call_receiver(Exchange& exchange, const Arguments& arguments);  // of a recv

}  // namespace cairn::comm
