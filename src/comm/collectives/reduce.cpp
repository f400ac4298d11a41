// Two reductions to a root, both in rank order:
//   flat    every rank sends its x to the root, which reduces: S bytes per rank, (n-1) S into the root.
//   spread  rank r reduces part r of all ranks (a reduce-scatter), then sends it to the root: about 2 S per link, for large S.
#include <memory>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

Coroutine flat_piece(Exchange& exchange, Reduce reduce, int root, Span slab, uint32_t step) {
  const int64_t bytes = slab.count * size_of(slab.dtype);
  if (exchange.rank() != root) {
    Completion sent = exchange.send(root, step, slab.data, bytes);
    co_await sent;
    co_return;
  }
  const std::vector<int> peers = peers_in_turn(exchange);
  std::vector<Completion> views;
  for (const int peer : peers) views.push_back(exchange.recv_view(peer, step, bytes));
  for (Completion& view : views) co_await view;
  reduce_views(exchange, reduce, slab, slab.data, peers, views);
}

// Piece k of a part is message 2k (unreduced, to the owner) and 2k + 1 (reduced, from the owner to the root).
Coroutine spread_piece(Exchange& exchange, Reduce reduce, int root, const Parts& parts, int64_t k) {
  const int me = exchange.rank();
  const auto step = static_cast<uint32_t>(2 * k);
  const std::vector<int> peers = peers_in_turn(exchange);
  const Span own = parts.span(me, k);
  std::vector<Completion> views, rest;
  for (const int peer : peers) {
    if (parts.moves(me, k)) views.push_back(exchange.recv_view(peer, step, parts.bytes(me, k)));
    if (me == root && parts.moves(peer, k)) rest.push_back(exchange.recv(peer, step + 1, parts.place(peer, k), parts.bytes(peer, k)));
  }
  for (const int peer : peers) {
    if (parts.moves(peer, k)) rest.push_back(exchange.send(peer, step, parts.place(peer, k), parts.bytes(peer, k)));
  }
  for (Completion& view : views) co_await view;
  std::unique_ptr<std::byte[]> sum;  // x stays unchanged except at the root
  if (parts.moves(me, k)) {
    if (me != root) sum = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(parts.bytes(me, k)));
    const Span result{me == root ? own.data : sum.get(), own.count, own.dtype};
    reduce_views(exchange, reduce, result, own.data, peers, views);
    views.clear();  // releases the peers' memory
    if (me != root) {
      Completion sent = exchange.send(root, step + 1, result.data, parts.bytes(me, k));
      co_await sent;
    }
  }
  for (Completion& moved : rest) co_await moved;
}

}  // namespace

Coroutine reduce_flat(Exchange& exchange, const Arguments& arguments) {
  const Slabs slabs(arguments.out, exchange.chunking().bytes);
  Coroutine all = run_pipelined(slabs.pieces, exchange.chunking().in_flight, [&](int64_t k) {
    return flat_piece(exchange, arguments.reduce, arguments.root, slabs.slab(k), static_cast<uint32_t>(k));
  });
  co_await all;
}

Coroutine reduce_spread(Exchange& exchange, const Arguments& arguments) {
  const Parts parts(arguments.out, arguments.counts, exchange.chunking().bytes);
  Coroutine all = run_pipelined(parts.pieces(), exchange.chunking().in_flight,
                                [&](int64_t k) { return spread_piece(exchange, arguments.reduce, arguments.root, parts, k); });
  co_await all;
}

}  // namespace cairn::comm
