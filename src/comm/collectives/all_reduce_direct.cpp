// The all-reduce in which each rank talks to each: sums in rank order.
#include <algorithm>
#include <array>

#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

constexpr int64_t kSwapBytes = 8 << 10;  // up to here two ranks swap the whole: as many bytes, and one message less to wait for

// An all-reduce cut into pieces that fit the caches: while one piece is reduced, the next ones are on their way. Piece k of a part is
// message 2k (unreduced, to the owner) and 2k + 1 (reduced, from the owner).
class PiecewiseAllReduce {
 public:
  PiecewiseAllReduce(Exchange& exchange, const Arguments& arguments)
      : exchange_(exchange),
        reduce_(arguments.reduce),
        parts_(arguments.out, arguments.counts, exchange.chunking().bytes),
        peers_(peers_in_turn(exchange)) {}

  int64_t pieces() const { return parts_.pieces(); }

  // Asks for what the others send of this piece, and sends them theirs. The first one is sent even where it is empty (fewer elements than
  // ranks): each rank hears from each, so that whoever is late or calls something else is known to all.
  void start(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const auto step = static_cast<uint32_t>(2 * k);
    const int64_t own = parts_.bytes(exchange_.rank(), k);
    for (const int peer : peers_) {
      if (parts_.moves(exchange_.rank(), k)) parts.push_back(exchange_.recv_view(peer, step, own));
      // May be asked for at once: the owner answers only when it has our part, so nothing is overwritten before it is gone.
      if (parts_.bytes(peer, k) > 0) rest.push_back(exchange_.recv(peer, step + 1, parts_.place(peer, k), parts_.bytes(peer, k)));
    }
    for (const int peer : peers_) {
      if (parts_.moves(peer, k)) rest.push_back(exchange_.send(peer, step, parts_.place(peer, k), parts_.bytes(peer, k)));
    }
  }

  // All versions of this rank's piece are there: reduces them in rank order and gives the result to all.
  void finish(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const int64_t own = parts_.bytes(exchange_.rank(), k);
    if (own > 0) {
      const Span result = parts_.span(exchange_.rank(), k);
      reduce_views(exchange_, reduce_, result, result.data, peers_, parts);
      for (const int peer : peers_) rest.push_back(exchange_.send(peer, static_cast<uint32_t>(2 * k + 1), result.data, own));
    }
    parts.clear();  // gives the memory back
  }

 private:
  Exchange& exchange_;
  Reduce reduce_;
  Parts parts_;
  std::vector<int> peers_;
};

// Two ranks and few bytes: each gets the whole of the other's, and both add in the same order.
Coroutine swap_and_reduce(Exchange& exchange, const Arguments& arguments) {
  const Span& x = arguments.out;
  const int64_t bytes = x.count * size_of(x.dtype);
  const int peer = 1 - exchange.rank();
  Completion theirs = exchange.recv_view(peer, kParts, bytes);
  Completion sent = exchange.send(peer, kParts, x.data, bytes);
  co_await theirs;
  co_await sent;  // before it is written over
  const std::array<const void*, 2> sources =
      exchange.rank() == 0 ? std::array<const void*, 2>{x.data, theirs.view()} : std::array<const void*, 2>{theirs.view(), x.data};
  combine(arguments.reduce, x.dtype, x.data, sources, x.count);
}

}  // namespace

// Each rank owns one part: it gets that part from all, reduces in rank order, and gives the result to all.
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
