// The collectives with several algorithms: ranks that share memory meet there; else each call goes to the one that costs least.
#include "comm/choice.h"
#include "comm/collectives.h"

namespace cairn::comm {
namespace {

int64_t bytes(const Span& x) { return x.count * size_of(x.dtype); }

}  // namespace

Task all_reduce(Exchange& exchange, const Arguments& arguments) {
  if (Meeting* meeting = exchange.meeting()) return meet_all_reduce(exchange, *meeting, arguments);
  switch (choose_all_reduce(bytes(arguments.out), exchange.size(), exchange.pieces(), exchange.link_facts())) {
    case AllReduce::ring:
      return all_reduce_ring(exchange, arguments);
    case AllReduce::halving:
      return all_reduce_halving(exchange, arguments);
    case AllReduce::tree:
      return all_reduce_tree(exchange, arguments);
    case AllReduce::direct:
      break;
  }
  return all_reduce_direct(exchange, arguments);
}

Task all_gather(Exchange& exchange, const Arguments& arguments) {
  if (Meeting* meeting = exchange.meeting()) return meet_all_gather(exchange, *meeting, arguments);
  switch (choose_all_gather(bytes(arguments.out), exchange.size(), exchange.pieces(), exchange.link_facts())) {
    case AllGather::ring:
      return all_gather_ring(exchange, arguments);
    case AllGather::doubling:
      return all_gather_doubling(exchange, arguments);
    case AllGather::direct:
      break;
  }
  return all_gather_direct(exchange, arguments);
}

Task reduce_scatter(Exchange& exchange, const Arguments& arguments) {
  Meeting* meeting = exchange.meeting();
  return meeting ? meet_reduce_scatter(exchange, *meeting, arguments) : reduce_scatter_direct(exchange, arguments);
}

Task all_to_all(Exchange& exchange, const Arguments& arguments) {
  Meeting* meeting = exchange.meeting();
  return meeting ? meet_all_to_all(exchange, *meeting, arguments) : all_to_all_direct(exchange, arguments);
}

Task barrier(Exchange& exchange, const Arguments&) {
  Meeting* meeting = exchange.meeting();
  return meeting ? meet_barrier(exchange, *meeting) : barrier_direct(exchange);
}

Task broadcast(Exchange& exchange, const Arguments& arguments) {
  if (arguments.out.count == 0) return Task();
  const Broadcast how = choose_broadcast(bytes(arguments.out), exchange.size(), exchange.pieces(), exchange.link_facts());
  return how == Broadcast::tree ? broadcast_tree(exchange, arguments) : broadcast_flat(exchange, arguments);
}

Task reduce(Exchange& exchange, const Arguments& arguments) {
  const ReduceTo how = choose_reduce(bytes(arguments.out), exchange.size(), exchange.pieces(), exchange.link_facts());
  return how == ReduceTo::spread ? reduce_spread(exchange, arguments) : reduce_flat(exchange, arguments);
}

}  // namespace cairn::comm
