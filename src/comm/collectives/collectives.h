#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives/exchange.h"
#include "comm/coroutine.h"
#include "comm/group.h"

namespace cairn::comm {

class AffineMap;
class Codec;

// The arguments of a collective; which fields are used depends on its kind.
struct Arguments {
  Span out = {};
  Span in = {};
  Reduce reduce = Reduce::sum;
  int root = 0;
  std::vector<int64_t> counts = {};     // elements per rank: of `out` when gathering and in all_to_all, of `in` when scattering
  std::vector<int64_t> in_counts = {};  // all_to_all
  std::shared_ptr<const Codec> codec = {};
  std::shared_ptr<const AffineMap> map = {};  // all_scan
  int64_t blocks = 0;                         // all_scan; 0: choose_scan_blocks
};

// The collectives, as coroutines over point-to-point messages: the same code for every transport. Both references must outlive the
// coroutine. choose_algorithm.h says which algorithm runs.
Coroutine all_reduce(Exchange& exchange, const Arguments& arguments);        // in place on `out`
Coroutine coded_all_reduce(Exchange& exchange, const Arguments& arguments);  // in place on `out`
Coroutine broadcast(Exchange& exchange, const Arguments& arguments);         // in place on `out`
Coroutine reduce(Exchange& exchange, const Arguments& arguments);            // in place on the root's `out`
Coroutine all_gather(Exchange& exchange, const Arguments& arguments);
Coroutine reduce_scatter(Exchange& exchange, const Arguments& arguments);
Coroutine gather(Exchange& exchange, const Arguments& arguments);
Coroutine scatter(Exchange& exchange, const Arguments& arguments);
Coroutine all_to_all(Exchange& exchange, const Arguments& arguments);
// `out` becomes the state before this rank, `in` the one after it; `root` is the first rank: 0, or the last one of the group.
Coroutine all_scan(Exchange& exchange, const Arguments& arguments);
Coroutine barrier(Exchange& exchange, const Arguments& arguments);
Coroutine send_one(Exchange& exchange, const Arguments& arguments);  // `out`, to position `root`
Coroutine recv_one(Exchange& exchange, const Arguments& arguments);  // `out`, from position `root`

// In shared memory, for ranks of one machine (comm/shm/collectives.cpp). If one rank has no slots, all use messages.
Coroutine shm_all_reduce(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_all_gather(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_reduce_scatter(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_all_to_all(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_barrier(Exchange& exchange, ShmGroup& group);

// The algorithms. Each works for every number of ranks and elements.
Coroutine barrier_direct(Exchange& exchange);
Coroutine reduce_scatter_direct(Exchange& exchange, const Arguments& arguments);
Coroutine all_to_all_direct(Exchange& exchange, const Arguments& arguments);
Coroutine all_reduce_direct(Exchange& exchange, const Arguments& arguments);
Coroutine all_reduce_ring(Exchange& exchange, const Arguments& arguments);
Coroutine all_reduce_halving(Exchange& exchange, const Arguments& arguments);
Coroutine all_reduce_tree(Exchange& exchange, const Arguments& arguments);
Coroutine all_gather_direct(Exchange& exchange, const Arguments& arguments);
Coroutine all_gather_ring(Exchange& exchange, const Arguments& arguments);
Coroutine all_gather_doubling(Exchange& exchange, const Arguments& arguments);
Coroutine broadcast_flat(Exchange& exchange, const Arguments& arguments);
Coroutine broadcast_tree(Exchange& exchange, const Arguments& arguments);
Coroutine reduce_flat(Exchange& exchange, const Arguments& arguments);
Coroutine reduce_spread(Exchange& exchange, const Arguments& arguments);

}  // namespace cairn::comm
