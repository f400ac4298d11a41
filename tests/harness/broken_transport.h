#pragma once
#include <memory>

#include "comm/transport.h"

namespace cairn::harness {

// Mistakes that a transport, or the collectives over it, might make. Planted to see that tests find them.
enum class Bug {
  dropped_wait,     // now and then a receive counts as done although nothing has come
  swapped_order,    // what two peers sent for the same place is taken the wrong way round
  missed_sequence,  // operations 2k and 2k + 1 of a group are not told apart
  lost_wakeup,      // now and then what was received wakes nobody
  short_read,       // now and then the last byte is missing
};

// A transport that does all as the one inside does, but for the bug.
std::unique_ptr<comm::Transport> broken(std::unique_ptr<comm::Transport> inside, Bug bug);

}  // namespace cairn::harness
