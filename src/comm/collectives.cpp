#include "comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace cairn::comm {
namespace {

// Steps: which message of an operation, where a pair exchanges more than one.
constexpr uint32_t kParts = 0;    // unreduced parts, to their owner
constexpr uint32_t kResults = 1;  // reduced parts, from their owner

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

// The peers' versions of this rank's own part, as they arrive, and their reduction in rank order.
class OwnPart {
 public:
  OwnPart(Exchange& exchange, int64_t count, Dtype dtype)
      : exchange_(exchange), count_(count), dtype_(dtype), bytes_(count * size_of(dtype)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_ * (exchange.size() - 1)))) {}

  Completion recv(int peer) { return exchange_.recv(peer, kParts, place(peer), bytes_); }

  void reduce(Reduce reduce, void* out, const void* own) const {
    std::vector<const void*> sources;
    for (int rank = 0; rank < exchange_.size(); ++rank) sources.push_back(rank == exchange_.rank() ? own : place(rank));
    combine(reduce, dtype_, out, sources, count_);
  }

 private:
  std::byte* place(int peer) const { return memory_.get() + bytes_ * (peer - (peer > exchange_.rank() ? 1 : 0)); }

  Exchange& exchange_;
  int64_t count_;
  Dtype dtype_;
  int64_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

Exchange::Exchange(Transport& transport, const std::vector<int>& ranks, int me, Envelope envelope, Purpose purpose)
    : transport_(transport), ranks_(ranks), me_(me), envelope_(envelope), purpose_(purpose) {}

Completion Exchange::send(int peer, uint32_t step, const void* data, int64_t bytes) {
  envelope_.step = step;
  Completion sent = transport_.send(ranks_[peer], envelope_, purpose_, data, bytes);
  if (!sent.done()) watched_.push_back({step, sent.transfer()});
  return sent;
}

Completion Exchange::recv(int peer, uint32_t step, void* into, int64_t bytes) {
  envelope_.step = step;
  Completion received = transport_.recv(ranks_[peer], envelope_, into, bytes);
  if (!received.done()) watched_.push_back({step, received.transfer()});
  return received;
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

// Parts are sent even where they are empty (fewer elements than ranks): each rank hears from each, so that whoever is late or calls something
// else is known to all. Each rank owns one part: it gets that part from all, reduces in rank order, and gives the result to all. 2(n-1)/n of x sent per rank.
Task all_reduce(Exchange& exchange, const Arguments& arguments) {
  const Span& x = arguments.out;
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const std::vector<int> peers = peers_in_turn(exchange);
  const int64_t size = size_of(x.dtype);
  const int64_t own_count = counts[exchange.rank()];
  std::byte* own = at_element(x, begin[exchange.rank()]);
  OwnPart part(exchange, own_count, x.dtype);
  std::vector<Completion> parts, rest;
  for (const int peer : peers) {
    parts.push_back(part.recv(peer));
    // May be asked for at once: the owner answers only when it has our part, so nothing is overwritten before it is gone.
    if (counts[peer] > 0) rest.push_back(exchange.recv(peer, kResults, at_element(x, begin[peer]), counts[peer] * size));
  }
  for (const int peer : peers) {
    rest.push_back(exchange.send(peer, kParts, at_element(x, begin[peer]), counts[peer] * size));
  }
  for (Completion& received : parts) co_await received;
  part.reduce(arguments.reduce, own, own);
  for (const int peer : peers) {
    if (own_count > 0) rest.push_back(exchange.send(peer, kResults, own, own_count * size));
  }
  for (Completion& moved : rest) co_await moved;
}

Task reduce_scatter(Exchange& exchange, const Arguments& arguments) {
  const std::vector<int64_t>& counts = arguments.counts;
  const std::vector<int64_t> begin = starts(counts);
  const std::vector<int> peers = peers_in_turn(exchange);
  const int64_t size = size_of(arguments.in.dtype);
  const int64_t own_count = counts[exchange.rank()];
  OwnPart part(exchange, own_count, arguments.in.dtype);
  std::vector<Completion> parts, sent;
  for (const int peer : peers) {
    parts.push_back(part.recv(peer));
  }
  for (const int peer : peers) {
    sent.push_back(exchange.send(peer, kParts, at_element(arguments.in, begin[peer]), counts[peer] * size));
  }
  for (Completion& received : parts) co_await received;
  part.reduce(arguments.reduce, arguments.out.data, at_element(arguments.in, begin[exchange.rank()]));
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
    if (out_counts[peer] > 0) moves.push_back(exchange.recv(peer, kParts, at_element(arguments.out, out_begin[peer]), out_counts[peer] * size));
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
