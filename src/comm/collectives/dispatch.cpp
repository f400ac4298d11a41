// Picks the algorithm of a collective: shared memory where all ranks share it, else the cheapest one (choose_algorithm.h).
#include "comm/collectives/choose_algorithm.h"
#include "comm/collectives/collectives.h"

namespace cairn::comm {
namespace {

int64_t span_bytes(const Span& x) { return x.count * size_of(x.dtype); }

}  // namespace

Coroutine all_reduce(Exchange& exchange, const Arguments& arguments) {
  if (ShmGroup* group = exchange.shm_group()) return shm_all_reduce(exchange, *group, arguments);
  switch (choose_all_reduce(span_bytes(arguments.out), exchange.size(), exchange.chunking(), exchange.link_facts())) {
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

Coroutine all_gather(Exchange& exchange, const Arguments& arguments) {
  if (ShmGroup* group = exchange.shm_group()) return shm_all_gather(exchange, *group, arguments);
  switch (choose_all_gather(span_bytes(arguments.out), exchange.size(), exchange.chunking(), exchange.link_facts())) {
    case AllGather::ring:
      return all_gather_ring(exchange, arguments);
    case AllGather::doubling:
      return all_gather_doubling(exchange, arguments);
    case AllGather::direct:
      break;
  }
  return all_gather_direct(exchange, arguments);
}

Coroutine reduce_scatter(Exchange& exchange, const Arguments& arguments) {
  ShmGroup* group = exchange.shm_group();
  return group ? shm_reduce_scatter(exchange, *group, arguments) : reduce_scatter_direct(exchange, arguments);
}

Coroutine all_to_all(Exchange& exchange, const Arguments& arguments) {
  ShmGroup* group = exchange.shm_group();
  return group ? shm_all_to_all(exchange, *group, arguments) : all_to_all_direct(exchange, arguments);
}

Coroutine barrier(Exchange& exchange, const Arguments&) {
  ShmGroup* group = exchange.shm_group();
  return group ? shm_barrier(exchange, *group) : barrier_direct(exchange);
}

Coroutine broadcast(Exchange& exchange, const Arguments& arguments) {
  if (arguments.out.count == 0) return Coroutine();
  const Broadcast how = choose_broadcast(span_bytes(arguments.out), exchange.size(), exchange.chunking(), exchange.link_facts());
  return how == Broadcast::tree ? broadcast_tree(exchange, arguments) : broadcast_flat(exchange, arguments);
}

Coroutine reduce(Exchange& exchange, const Arguments& arguments) {
  const ReduceTo how = choose_reduce(span_bytes(arguments.out), exchange.size(), exchange.chunking(), exchange.link_facts());
  return how == ReduceTo::spread ? reduce_spread(exchange, arguments) : reduce_flat(exchange, arguments);
}

}  // namespace cairn::comm
