#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/exchange.h"
#include "comm/group.h"
#include "comm/task.h"

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
Task all_reduce(Exchange& exchange, const Arguments& arguments);        // in place on `out`
Task coded_all_reduce(Exchange& exchange, const Arguments& arguments);  // in place on `out`
Task broadcast(Exchange& exchange, const Arguments& arguments);         // in place on `out`
Task reduce(Exchange& exchange, const Arguments& arguments);            // in place on the root's `out`
Task all_gather(Exchange& exchange, const Arguments& arguments);
Task reduce_scatter(Exchange& exchange, const Arguments& arguments);
Task gather(Exchange& exchange, const Arguments& arguments);
Task scatter(Exchange& exchange, const Arguments& arguments);
Task all_to_all(Exchange& exchange, const Arguments& arguments);
Task barrier(Exchange& exchange, const Arguments& arguments);
Task send_one(Exchange& exchange, const Arguments& arguments);  // `out`, to position `root`
Task recv_one(Exchange& exchange, const Arguments& arguments);  // `out`, from position `root`

// Among ranks of one machine that meet in the memory they share; where one of them cannot, as below.
Task meet_all_reduce(Exchange& exchange, Meeting& meeting, const Arguments& arguments);
Task meet_all_gather(Exchange& exchange, Meeting& meeting, const Arguments& arguments);
Task meet_reduce_scatter(Exchange& exchange, Meeting& meeting, const Arguments& arguments);
Task meet_all_to_all(Exchange& exchange, Meeting& meeting, const Arguments& arguments);
Task meet_barrier(Exchange& exchange, Meeting& meeting);

// The algorithms among which is chosen; each works for every number of ranks and elements.
Task barrier_direct(Exchange& exchange);
Task reduce_scatter_direct(Exchange& exchange, const Arguments& arguments);
Task all_to_all_direct(Exchange& exchange, const Arguments& arguments);
Task all_reduce_direct(Exchange& exchange, const Arguments& arguments);
Task all_reduce_ring(Exchange& exchange, const Arguments& arguments);
Task all_reduce_halving(Exchange& exchange, const Arguments& arguments);
Task all_reduce_tree(Exchange& exchange, const Arguments& arguments);
Task all_gather_direct(Exchange& exchange, const Arguments& arguments);
Task all_gather_ring(Exchange& exchange, const Arguments& arguments);
Task all_gather_doubling(Exchange& exchange, const Arguments& arguments);
Task broadcast_flat(Exchange& exchange, const Arguments& arguments);
Task broadcast_tree(Exchange& exchange, const Arguments& arguments);
Task reduce_flat(Exchange& exchange, const Arguments& arguments);
Task reduce_spread(Exchange& exchange, const Arguments& arguments);

}  // namespace cairn::comm
