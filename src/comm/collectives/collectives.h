#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives/exchange.h"
#include "comm/coroutine.h"
#include "comm/group.h"

namespace cairn::comm {

class Codec;

// What a collective works on; which fields count depends on the kind.
struct Arguments {
  Span out = {};
  Span in = {};
  Reduce reduce = Reduce::sum;
  int root = 0;
  std::vector<int64_t> counts = {};     // elements per rank: of out (gathering, all_to_all), of in (scattering)
  std::vector<int64_t> in_counts = {};  // all_to_all
  std::shared_ptr<const Codec> codec = {};
};

// The collectives, written once for every transport that offers point-to-point. Both references must outlive the task.
// Up to 8 ranks each talks to each, so that whoever waits knows for whom; beyond, choice.h says what is chosen.
Coroutine all_reduce(Exchange& exchange, const Arguments& arguments);        // in place on `out`
Coroutine coded_all_reduce(Exchange& exchange, const Arguments& arguments);  // in place on `out`
Coroutine broadcast(Exchange& exchange, const Arguments& arguments);         // in place on `out`
Coroutine reduce(Exchange& exchange, const Arguments& arguments);            // in place on the root's `out`
Coroutine all_gather(Exchange& exchange, const Arguments& arguments);
Coroutine reduce_scatter(Exchange& exchange, const Arguments& arguments);
Coroutine gather(Exchange& exchange, const Arguments& arguments);
Coroutine scatter(Exchange& exchange, const Arguments& arguments);
Coroutine all_to_all(Exchange& exchange, const Arguments& arguments);
Coroutine barrier(Exchange& exchange, const Arguments& arguments);
Coroutine send_one(Exchange& exchange, const Arguments& arguments);  // `out`, to position `root`
Coroutine recv_one(Exchange& exchange, const Arguments& arguments);  // `out`, from position `root`

// Among ranks of one machine that meet in the memory they share; where one of them cannot, as below.
Coroutine shm_all_reduce(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_all_gather(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_reduce_scatter(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_all_to_all(Exchange& exchange, ShmGroup& group, const Arguments& arguments);
Coroutine shm_barrier(Exchange& exchange, ShmGroup& group);

// The algorithms among which is chosen; each works for every number of ranks and elements.
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
