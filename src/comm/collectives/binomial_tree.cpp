// Broadcast and all-reduce over a binomial tree: n - 1 messages each way, and no rank waits for a chain of more than ceil(log2 n).
//
// Ranks are renumbered so that the root has position v = 0. With b = the lowest set bit of v (v = 0: no limit):
//   parent(v)   = v - b
//   children(v) = v + 1, v + 2, v + 4, ...   below v + b and below n
// All-reduce: every rank adds its children's sums to its own values, nearest child first, and sends the sum to its parent; the root sends
// the result down again. The sum is in rank order, grouped: x0 + x1, then + (x2 + x3), then + (x4 + ... + x7), ...
#include <algorithm>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

// A rank's parent and children; -1: it is the root.
struct Place {
  Place(int rank, int root, int ranks) {
    const int v = (rank - root + ranks) % ranks;
    const auto rank_at = [&](int position) { return (position + root) % ranks; };
    if (v > 0) parent = rank_at(v & (v - 1));
    for (int distance = 1; (v & distance) == 0 && v + distance < ranks; distance *= 2) children.push_back(rank_at(v + distance));
  }
  int parent = -1;
  std::vector<int> children;  // nearest first
};

int64_t bytes(const Span& range) { return range.count * size_of(range.dtype); }

// Receives from the parent, then sends to the children, the one with the largest subtree first.
Coroutine pass_down(Exchange& exchange, const Place& at, Span slab, uint32_t step) {
  std::vector<Completion> sent;
  if (at.parent >= 0) {
    Completion result = exchange.recv(at.parent, step, slab.data, bytes(slab));
    co_await result;
  }
  for (auto child = at.children.rbegin(); child != at.children.rend(); ++child) {
    sent.push_back(exchange.send(*child, step, slab.data, bytes(slab)));
  }
  for (Completion& gone : sent) co_await gone;
}

// Adds the sums of all children to this rank's values and sends the result to the parent.
Coroutine sum_up(Exchange& exchange, const Place& at, Reduce reduce, Span slab, uint32_t step) {
  std::vector<Completion> parts;
  for (const int child : at.children) parts.push_back(exchange.recv_view(child, step, bytes(slab)));
  for (Completion& part : parts) co_await part;
  std::vector<const void*> sources{slab.data};
  for (const Completion& part : parts) sources.push_back(part.view());
  if (!parts.empty()) combine(reduce, slab.dtype, slab.data, sources, slab.count);
  parts.clear();  // releases the peers' memory
  if (at.parent < 0) co_return;
  Completion sent = exchange.send(at.parent, step, slab.data, bytes(slab));
  co_await sent;
}

}  // namespace

Coroutine all_reduce_tree(Exchange& exchange, const Arguments& arguments) {
  const Place at(exchange.rank(), 0, exchange.size());
  const Slabs slabs(arguments.out, exchange.chunking().bytes);
  const auto both = [&](int64_t k) -> Coroutine {
    const auto step = static_cast<uint32_t>(2 * k);
    const Span slab = slabs.slab(k);
    Coroutine up = sum_up(exchange, at, arguments.reduce, slab, step);
    co_await up;
    Coroutine down = pass_down(exchange, at, slab, step + 1);
    co_await down;
  };
  Coroutine all = run_pipelined(slabs.pieces, exchange.chunking().in_flight, both);
  co_await all;
}

Coroutine broadcast_tree(Exchange& exchange, const Arguments& arguments) {
  const Place at(exchange.rank(), arguments.root, exchange.size());
  const Slabs slabs(arguments.out, exchange.chunking().bytes);
  const auto piece = [&](int64_t k) { return pass_down(exchange, at, slabs.slab(k), static_cast<uint32_t>(2 * k + 1)); };
  Coroutine all = run_pipelined(slabs.pieces, exchange.chunking().in_flight, piece);
  co_await all;
}

}  // namespace cairn::comm
