// The all-gathers in which each rank talks to each, and in which what is gathered doubles with every message.
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

// With rank r as the first, the parts stand in one row; it has 1 of them, then 2, 4, ...: at each step it gets as many again from the rank
// that far ahead, and gives its own to the one that far behind. In the end the row is put in its place. Any number of ranks.
Coroutine all_gather_doubling(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t> begin = starts(arguments.counts);
  const int n = exchange.size(), me = exchange.rank();
  const int64_t size = size_of(arguments.in.dtype);
  std::vector<int64_t> row(static_cast<size_t>(n) + 1);  // bytes before each part
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
