#include "comm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace cairn::comm {
namespace {

// Steps: which message of an operation, where a pair exchanges more than one.
constexpr uint32_t kParts = 0;    // unreduced parts, to their owner
constexpr uint32_t kResults = 1;  // reduced parts, from their owner

constexpr int64_t kSwapBytes = 8 << 10;  // up to here two ranks swap the whole: as many bytes, and one message less to wait for

std::byte* at_element(const Span& span, int64_t element) { return static_cast<std::byte*>(span.data) + element * size_of(span.dtype); }

// Where each rank's elements begin.
std::vector<int64_t> starts(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begin(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), int64_t{0});
  return begin;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}

// The peers from the next one on, so that not all ranks turn to the same one first.
std::vector<int> peers_in_turn(const Exchange& exchange) {
  std::vector<int> peers;
  for (int k = 1; k < exchange.size(); ++k) peers.push_back((exchange.rank() + k) % exchange.size());
  return peers;
}

// Reduces this rank's own piece in rank order: the peers' versions as they lie in `views`, in the order of `peers`, and its own.
void reduce_views(const Exchange& exchange, Reduce reduce, const Span& out, const void* own, const std::vector<int>& peers,
                  const std::vector<Completion>& views) {
  std::vector<const void*> sources(static_cast<size_t>(exchange.size()), own);
  for (size_t i = 0; i < peers.size(); ++i) sources[peers[i]] = views[i].view();
  combine(reduce, out.dtype, out.data, sources, out.count);
}

// An all-reduce cut into pieces that fit the caches: while one piece is reduced, the next ones are on their way. Piece k of a part is
// message 2k (unreduced, to the owner) and 2k + 1 (reduced, from the owner).
class PiecewiseAllReduce {
 public:
  PiecewiseAllReduce(Exchange& exchange, const Arguments& arguments)
      : exchange_(exchange),
        arguments_(arguments),
        x_(arguments.out),
        begin_(starts(arguments.counts)),
        peers_(peers_in_turn(exchange)),
        size_(size_of(x_.dtype)),
        most_(std::max<int64_t>(1, exchange.pieces().bytes / size_)) {
    const int64_t longest = std::max<int64_t>(1, *std::max_element(arguments.counts.begin(), arguments.counts.end()));
    pieces_ = (longest + most_ - 1) / most_;
  }

  int64_t pieces() const { return pieces_; }

  // Asks for what the others send of this piece, and sends them theirs. The first one is sent even where it is empty (fewer elements than
  // ranks): each rank hears from each, so that whoever is late or calls something else is known to all.
  void start(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const auto step = static_cast<uint32_t>(2 * k);
    const int64_t own = bytes(exchange_.rank(), k);
    for (const int peer : peers_) {
      if (own > 0 || k == 0) parts.push_back(exchange_.recv_view(peer, step, own));
      // May be asked for at once: the owner answers only when it has our part, so nothing is overwritten before it is gone.
      if (bytes(peer, k) > 0) rest.push_back(exchange_.recv(peer, step + 1, place(peer, k), bytes(peer, k)));
    }
    for (const int peer : peers_) {
      if (bytes(peer, k) > 0 || k == 0) rest.push_back(exchange_.send(peer, step, place(peer, k), bytes(peer, k)));
    }
  }

  // All versions of this rank's piece are there: reduces them in rank order and gives the result to all.
  void finish(int64_t k, std::vector<Completion>& parts, std::vector<Completion>& rest) {
    const int64_t own = bytes(exchange_.rank(), k);
    if (own > 0) {
      std::byte* result = place(exchange_.rank(), k);
      reduce_views(exchange_, arguments_.reduce, {result, own / size_, x_.dtype}, result, peers_, parts);
      for (const int peer : peers_) rest.push_back(exchange_.send(peer, static_cast<uint32_t>(2 * k + 1), result, own));
    }
    parts.clear();  // gives the memory back
  }

 private:
  int64_t bytes(int rank, int64_t k) const { return std::clamp<int64_t>(arguments_.counts[rank] - k * most_, 0, most_) * size_; }
  std::byte* place(int rank, int64_t k) const { return at_element(x_, begin_[rank] + std::min(k * most_, arguments_.counts[rank])); }

  Exchange& exchange_;
  const Arguments& arguments_;
  const Span& x_;
  std::vector<int64_t> begin_;
  std::vector<int> peers_;
  int64_t size_;
  int64_t most_;  // elements of a piece
  int64_t pieces_ = 0;
};

// Two ranks and few bytes: each gets the whole of the other's, and both add in the same order.
Task swap_and_reduce(Exchange& exchange, const Arguments& arguments) {
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

Exchange::Exchange(Transport& transport, const std::vector<int>& ranks, int me, Envelope envelope, Purpose purpose)
    : transport_(transport), ranks_(ranks), me_(me), envelope_(envelope), purpose_(purpose) {}

Completion Exchange::watch(uint32_t step, Completion completion) {
  if (!completion.done()) watched_.push_back({step, completion.transfer()});
  return completion;
}

Completion Exchange::send(int peer, uint32_t step, const void* data, int64_t bytes) {
  envelope_.step = step;
  return watch(step, transport_.send(ranks_[peer], envelope_, purpose_, data, bytes));
}

Completion Exchange::recv(int peer, uint32_t step, void* into, int64_t bytes) {
  envelope_.step = step;
  return watch(step, transport_.recv(ranks_[peer], envelope_, into, bytes));
}

Completion Exchange::recv_view(int peer, uint32_t step, int64_t bytes) {
  envelope_.step = step;
  return watch(step, transport_.recv_view(ranks_[peer], envelope_, bytes));
}

std::vector<int> Exchange::late() const {
  for (const bool outgoing : {false, true}) {
    std::optional<uint32_t> first_step;
    for (const auto& [step, transfer] : watched_) {
      if (!transfer->done && transfer->outgoing == outgoing) first_step = std::min(first_step.value_or(step), step);
    }
    if (!first_step) continue;
    std::set<int> peers;
    for (const auto& [step, transfer] : watched_) {
      if (!transfer->done && transfer->outgoing == outgoing && step == *first_step) peers.insert(transfer->peer);
    }
    return {peers.begin(), peers.end()};
  }
  return {};
}

std::vector<int> Exchange::heard() const {
  std::set<int> peers;
  for (const auto& [step, transfer] : watched_) {
    if (transfer->done && !transfer->outgoing && !transfer->error && !transfer->cancelled) peers.insert(transfer->peer);
  }
  return {peers.begin(), peers.end()};
}

// Each rank owns one part: it gets that part from all, reduces in rank order, and gives the result to all. 2(n-1)/n of x sent per rank.
Task all_reduce(Exchange& exchange, const Arguments& arguments) {
  if (exchange.size() == 2 && arguments.out.count * size_of(arguments.out.dtype) <= kSwapBytes) {
    co_await swap_and_reduce(exchange, arguments);
    co_return;
  }
  PiecewiseAllReduce run(exchange, arguments);
  std::vector<std::vector<Completion>> parts(static_cast<size_t>(run.pieces()));
  std::vector<Completion> rest;
  const int64_t ahead = exchange.pieces().in_flight;
  for (int64_t k = 0; k < std::min(ahead, run.pieces()); ++k) run.start(k, parts[k], rest);
  for (int64_t k = 0; k < run.pieces(); ++k) {
    for (Completion& received : parts[k]) co_await received;
    run.finish(k, parts[k], rest);
    if (k + ahead < run.pieces()) run.start(k + ahead, parts[k + ahead], rest);
  }
  for (Completion& moved : rest) co_await moved;
}

Task reduce_scatter(Exchange& exchange, const Arguments& arguments) {
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
  parts.clear();  // gives the memory back
  for (Completion& moved : sent) co_await moved;
}

Task all_gather(Exchange& exchange, const Arguments& arguments) {
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

Task broadcast(Exchange& exchange, const Arguments& arguments) {
  const int64_t bytes = arguments.out.count * size_of(arguments.out.dtype);
  if (bytes == 0) co_return;
  std::vector<Completion> moves;
  if (exchange.rank() == arguments.root) {
    for (const int peer : peers_in_turn(exchange)) moves.push_back(exchange.send(peer, kResults, arguments.out.data, bytes));
  } else {
    moves.push_back(exchange.recv(arguments.root, kResults, arguments.out.data, bytes));
  }
  for (Completion& moved : moves) co_await moved;
}

Task gather(Exchange& exchange, const Arguments& arguments) {
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

Task scatter(Exchange& exchange, const Arguments& arguments) {
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

Task all_to_all(Exchange& exchange, const Arguments& arguments) {
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

Task barrier(Exchange& exchange, const Arguments&) {
  std::vector<Completion> moves;
  for (const int peer : peers_in_turn(exchange)) {
    moves.push_back(exchange.recv(peer, kParts, nullptr, 0));
    moves.push_back(exchange.send(peer, kParts, nullptr, 0));
  }
  for (Completion& moved : moves) co_await moved;
}

Task send_one(Exchange& exchange, const Arguments& arguments) {
  Completion sent = exchange.send(arguments.root, kParts, arguments.out.data, arguments.out.count * size_of(arguments.out.dtype));
  co_await sent;
}

Task recv_one(Exchange& exchange, const Arguments& arguments) {
  Completion received = exchange.recv(arguments.root, kParts, arguments.out.data, arguments.out.count * size_of(arguments.out.dtype));
  co_await received;
}

}  // namespace cairn::comm
