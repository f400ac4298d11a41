#pragma once
#include <cstdint>
#include <vector>

#include "comm/collectives/collectives.h"
#include "comm/envelope.h"

namespace cairn::comm {

// Bytes that this rank sends to the rank at position `to`.
struct Flow {
  int to = 0;
  int64_t bytes = 0;
  bool operator==(const Flow&) const = default;
};

// How the ledger books a device operation, whose traffic nobody can observe: as if its collectives used the ring 0, 1, ..., n-1. Rank `me`
// sends: all_reduce 2(n-1)/n of all bytes; all_gather all but the next rank's part; reduce_scatter all but its own part; broadcast and
// reduce everything, except the last rank of the chain; all other kinds straight to the receiver. `sends`: this rank is the sender of a
// send_recv.
std::vector<Flow> ring_traffic(OperationKind kind, const Arguments& arguments, int me, int n, bool sends);

}  // namespace cairn::comm
