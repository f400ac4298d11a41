// The direct collectives: every rank sends straight to the ranks that need its data. Reductions are in rank order.
#include "comm/collectives/collectives.h"

#include "comm/collectives/layout.h"

namespace cairn::comm {

Coroutine reduce_scatter_direct(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const std::vector<int> peers = peers_in_turn(exchange);
  const int64_t size = size_of(arguments.in.dtype);
  const int64_t own_count = counts[exchange.rank()];
  std::vector<Completion> parts, sent;
  for (const int peer : peers) {
    parts.push_back(exchange.recv_view(peer, kParts, own_count * size));
  }
  for (const int peer : peers) {
    sent.push_back(exchange.send(peer, kParts, at_element(arguments.in, begin[peer]), counts[peer] * size));
  }
  for (Completion& received : parts) co_await received;
  const void* own = at_element(arguments.in, begin[exchange.rank()]);
  reduce_views(exchange, arguments.reduce, {arguments.out.data, own_count, arguments.in.dtype}, own, peers, parts);
  parts.clear();  // releases the peers' memory
  for (Completion& moved : sent) co_await moved;
}

Coroutine broadcast_flat(Exchange& exchange, const Arguments& arguments) {
  const int64_t bytes = arguments.out.count * size_of(arguments.out.dtype);
  std::vector<Completion> moves;
  if (exchange.rank() == arguments.root) {
    for (const int peer : peers_in_turn(exchange)) moves.push_back(exchange.send(peer, kResults, arguments.out.data, bytes));
  } else {
    moves.push_back(exchange.recv(arguments.root, kResults, arguments.out.data, bytes));
  }
  for (Completion& moved : moves) co_await moved;
}

Coroutine gather(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const int64_t size = size_of(arguments.in.dtype);
  const int64_t own_bytes = counts[exchange.rank()] * size;
  std::vector<Completion> moves;
  if (exchange.rank() == arguments.root) {
    for (const int peer : peers_in_turn(exchange)) {
      if (counts[peer] > 0) moves.push_back(exchange.recv(peer, kParts, at_element(arguments.out, begin[peer]), counts[peer] * size));
    }
    copy_bytes(at_element(arguments.out, begin[exchange.rank()]), arguments.in.data, own_bytes);
  } else if (own_bytes > 0) {
    moves.push_back(exchange.send(arguments.root, kParts, arguments.in.data, own_bytes));
  }
  for (Completion& moved : moves) co_await moved;
}

Coroutine scatter(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const int64_t size = size_of(arguments.out.dtype);
  const int64_t own_bytes = counts[exchange.rank()] * size;
  std::vector<Completion> moves;
  if (exchange.rank() == arguments.root) {
    for (const int peer : peers_in_turn(exchange)) {
      if (counts[peer] > 0) moves.push_back(exchange.send(peer, kParts, at_element(arguments.in, begin[peer]), counts[peer] * size));
    }
    copy_bytes(arguments.out.data, at_element(arguments.in, begin[exchange.rank()]), own_bytes);
  } else if (own_bytes > 0) {
    moves.push_back(exchange.recv(arguments.root, kParts, arguments.out.data, own_bytes));
  }
  for (Completion& moved : moves) co_await moved;
}

Coroutine all_to_all_direct(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& out_counts = arguments.counts;
  const std::vector<int64_t>& in_counts = arguments.in_counts;
  const std::vector<int64_t> out_begin = starts(out_counts), in_begin = starts(in_counts);
  const std::vector<int> peers = peers_in_turn(exchange);
  const int64_t size = size_of(arguments.in.dtype);
  const int me = exchange.rank();
  std::vector<Completion> moves;
  for (const int peer : peers) {
    if (out_counts[peer] > 0)
      moves.push_back(exchange.recv(peer, kParts, at_element(arguments.out, out_begin[peer]), out_counts[peer] * size));
  }
  for (const int peer : peers) {
    if (in_counts[peer] > 0) moves.push_back(exchange.send(peer, kParts, at_element(arguments.in, in_begin[peer]), in_counts[peer] * size));
  }
  copy_bytes(at_element(arguments.out, out_begin[me]), at_element(arguments.in, in_begin[me]), in_counts[me] * size);
  for (Completion& moved : moves) co_await moved;
}

Coroutine barrier_direct(Exchange& exchange) {
  std::vector<Completion> moves;
  for (const int peer : peers_in_turn(exchange)) {
    moves.push_back(exchange.recv(peer, kParts, nullptr, 0));
    moves.push_back(exchange.send(peer, kParts, nullptr, 0));
  }
  for (Completion& moved : moves) co_await moved;
}

Coroutine send_one(Exchange& exchange, const Arguments& arguments) {
  Completion sent = exchange.send(arguments.root, kParts, arguments.out.data, arguments.out.count * size_of(arguments.out.dtype));
  co_await sent;
}

Coroutine recv_one(Exchange& exchange, const Arguments& arguments) {
  Completion received = exchange.recv(arguments.root, kParts, arguments.out.data, arguments.out.count * size_of(arguments.out.dtype));
  co_await received;
}

}  // namespace cairn::comm
