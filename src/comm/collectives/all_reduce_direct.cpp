// Direct all-reduce: every rank exchanges messages with every other one. Used up to 8 ranks and by cost beyond.
//
// x of S bytes is cut into n parts; rank r owns part r:
//   1. every rank sends part r of its x to rank r;
//   2. rank r computes  part_r = x_0[r] op x_1[r] op ... op x_{n-1}[r]  in rank order, whatever the order of arrival;
//   3. rank r sends part_r to all others.
// Each rank sends 2(n-1)/n S bytes in 2(n-1) messages, with two latencies. Every rank hears from every other one, so that a late rank is
// known by name.
#include <algorithm>
#include <array>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

constexpr int64_t kSwapBytes = 8 << 10;  // up to here two ranks swap everything: as many bytes, one wait less

// The parts are cut into pieces that fit the caches: while one piece is reduced, the next ones are in flight. Piece k of a part is message
// 2k (unreduced, to the owner) and message 2k + 1 (reduced, from the owner).
class PiecewiseAllReduce {
 public:
  PiecewiseAllReduce(Exchange& exchange, const Arguments& arguments)
      : exchange_(exchange),
        reduce_(arguments.reduce),
        parts_(arguments.out, arguments.counts, exchange.chunking().bytes),
        peers_(peers_in_turn(exchange)) {}

  int64_t pieces() const { return parts_.pieces(); }

  // Posts the receives of piece k and sends the other ranks their parts. The first piece is sent even if it is empty (fewer elements than
  // ranks), so that every rank hears from every other one and can name a late or mismatched rank.
  void start(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const auto step = static_cast<uint32_t>(2 * k);
    const int64_t own = parts_.bytes(exchange_.rank(), k);
    for (const int peer : peers_) {
      if (parts_.moves(exchange_.rank(), k)) parts.push_back(exchange_.recv_view(peer, step, own));
      // Safe to post now: the owner answers only after it has our part, so nothing is overwritten before it is sent.
      if (parts_.bytes(peer, k) > 0) rest.push_back(exchange_.recv(peer, step + 1, parts_.place(peer, k), parts_.bytes(peer, k)));
    }
    for (const int peer : peers_) {
      if (parts_.moves(peer, k)) rest.push_back(exchange_.send(peer, step, parts_.place(peer, k), parts_.bytes(peer, k)));
    }
  }

  // All versions of this rank's piece have arrived: reduces them in rank order and sends the result to all.
  void finish(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const int64_t own = parts_.bytes(exchange_.rank(), k);
    if (own > 0) {
      const Span result = parts_.span(exchange_.rank(), k);
      reduce_views(exchange_, reduce_, result, result.data, peers_, parts);
      for (const int peer : peers_) rest.push_back(exchange_.send(peer, static_cast<uint32_t>(2 * k + 1), result.data, own));
    }
    parts.clear();  // releases the peers' memory
  }

 private:
  Exchange& exchange_;
  Reduce reduce_;
  Parts parts_;
  std::vector<int> peers_;
};

// Two ranks and few bytes: each gets all of the other's values and both add in the same order.
Coroutine swap_and_reduce(Exchange& exchange, const Arguments& arguments) {
  const Span& x = arguments.out;
  const int64_t bytes = x.count * size_of(x.dtype);
  const int peer = 1 - exchange.rank();
  Completion theirs = exchange.recv_view(peer, kParts, bytes);
  Completion sent = exchange.send(peer, kParts, x.data, bytes);
  co_await theirs;
  co_await sent;  // before it is overwritten
  const std::array<const void*, 2> sources =
      exchange.rank() == 0 ? std::array<const void*, 2>{x.data, theirs.view()} : std::array<const void*, 2>{theirs.view(), x.data};
  combine(arguments.reduce, x.dtype, x.data, sources, x.count);
}

}  // namespace

Coroutine all_reduce_direct(Exchange& exchange, const Arguments& arguments) {
  if (exchange.size() == 2 && arguments.out.count * size_of(arguments.out.dtype) <= kSwapBytes) {
    co_await swap_and_reduce(exchange, arguments);
    co_return;
  }
  PiecewiseAllReduce run(exchange, arguments);
  std::vector<std::vector<Completion>> parts(static_cast<size_t>(run.pieces()));
  std::vector<Completion> rest;
  const int64_t ahead = exchange.chunking().in_flight;
  for (int64_t k = 0; k < std::min(ahead, run.pieces()); ++k) run.start(k, parts[k], rest);
  for (int64_t k = 0; k < run.pieces(); ++k) {
    for (Completion& received : parts[k]) co_await received;
    run.finish(k, parts[k], rest);
    if (k + ahead < run.pieces()) run.start(k + ahead, parts[k + ahead], rest);
  }
  for (Completion& moved : rest) co_await moved;
}

}  // namespace cairn::comm
