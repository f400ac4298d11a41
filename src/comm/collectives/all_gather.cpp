// Two all-gathers. Part i of the result comes from rank i; S bytes in all.
//
//   direct    every rank sends its part to every other one: n - 1 messages, one latency.
//   doubling  Bruck's algorithm (Bruck et al. 1997): in step j rank r receives from rank r + 2^j the first 2^j parts that one has, and
//   sends
//             its own first 2^j parts to rank r - 2^j. The parts it has, in the order r, r + 1, ..., double each time: ceil(log2 n)
//             messages for any n. A last copy rotates them to their places.
// Both send (n-1)/n S bytes per rank.
#include <algorithm>
#include <memory>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {

Coroutine all_gather_direct(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const std::vector<int> peers = peers_in_turn(exchange);
  const int64_t size = size_of(arguments.in.dtype);
  const int64_t own_bytes = counts[exchange.rank()] * size;
  std::vector<Completion> moves;
  for (const int peer : peers) {
    moves.push_back(exchange.recv(peer, kResults, at_element(arguments.out, begin[peer]), counts[peer] * size));
  }
  for (const int peer : peers) {
    moves.push_back(exchange.send(peer, kResults, arguments.in.data, own_bytes));
  }
  copy_bytes(at_element(arguments.out, begin[exchange.rank()]), arguments.in.data, own_bytes);
  for (Completion& moved : moves) co_await moved;
}

Coroutine all_gather_doubling(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t> begin = starts(arguments.counts);
  const int n = exchange.size(), me = exchange.rank();
  const int64_t size = size_of(arguments.in.dtype);
  std::vector<int64_t> row(static_cast<size_t>(n) + 1);  // offset of each part in rank r's order
  for (int i = 0; i < n; ++i) row[i + 1] = row[i] + arguments.counts[(me + i) % n] * size;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(row[n]));
  copy_bytes(memory.get(), arguments.in.data, row[1]);
  std::vector<Completion> sent;
  uint32_t step = 0;
  for (int have = 1; have < n; have *= 2, ++step) {
    const int more = std::min(have, n - have);
    Completion theirs = exchange.recv((me + have) % n, step, memory.get() + row[have], row[have + more] - row[have]);
    sent.push_back(exchange.send((me - have + n) % n, step, memory.get(), row[more]));
    co_await theirs;
  }
  for (int i = 0; i < n; ++i) {
    copy_bytes(at_element(arguments.out, begin[(me + i) % n]), memory.get() + row[i], row[i + 1] - row[i]);
  }
  for (Completion& gone : sent) co_await gone;
}

}  // namespace cairn::comm
