#pragma once
#include <cstdint>
#include <vector>

#include "comm/collectives/collectives.h"
#include "comm/envelope.h"

namespace cairn::comm {

// Bytes from this rank to the one at position `to`.
struct Flow {
  int to = 0;
  int64_t bytes = 0;
  bool operator==(const Flow&) const = default;
};

// What rank `me` of n sends in an operation whose collectives go round the ring 0, 1, ..., n-1, as the ledger books what devices do among
// themselves: all_reduce 2(n-1)/n of all bytes, all_gather all but the next rank's part, reduce_scatter all but its own, broadcast and
// reduce all of it by all but the last; the others straight to whom it is for. `sends`: of a send_recv.
std::vector<Flow> ring_traffic(OperationKind kind, const Arguments& arguments, int me, int n, bool sends);

}  // namespace cairn::comm
