#include "comm/collectives/exchange.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "comm/flight/recorder.h"

namespace cairn::comm {

Exchange::Exchange(Transport& transport, const std::vector<int>& ranks, int me, Envelope envelope, Purpose purpose)
    : transport_(transport), ranks_(ranks), me_(me), envelope_(envelope), purpose_(purpose), begun_(transport.clock().now()) {}

// A transfer that is done already is recorded at once; the others by the CompletionQueue.
Completion Exchange::recorded(Completion completion, int64_t bytes, std::chrono::nanoseconds begun) const {
  if (!recorder_ || !completion.transfer()) return completion;
  Transfer& transfer = *completion.transfer();
  recorder_->posted(transfer, bytes, flight_, begun);
  if (transfer.done) recorder_->finished(transfer);
  return completion;
}

Completion Exchange::watch(uint32_t step, Completion completion) {
  if (completion.done()) return completion;
  watched_.push_back({step, completion.transfer()});
  FlightMark& mark = completion.transfer()->flight;
  if (recorder_ && !mark.recorder) mark = {recorder_, flight_, 0, {}};  // a wait in shared memory
  return completion;
}

Completion Exchange::send(int peer, uint32_t step, const void* data, int64_t bytes) {
  envelope_.step = step;
  const auto begun = now();
  return watch(step, recorded(transport_.send(ranks_[peer], envelope_, purpose_, data, bytes), bytes, begun));
}

Completion Exchange::recv(int peer, uint32_t step, void* into, int64_t bytes) {
  envelope_.step = step;
  const auto begun = now();
  return watch(step, recorded(transport_.recv(ranks_[peer], envelope_, into, bytes), bytes, begun));
}

Completion Exchange::recv_view(int peer, uint32_t step, int64_t bytes) {
  envelope_.step = step;
  const auto begun = now();
  return watch(step, recorded(transport_.recv_view(ranks_[peer], envelope_, bytes), bytes, begun));
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
      if (transfer->done || transfer->outgoing != outgoing || step != *first_step) continue;
      for (const int rank : transfer->awaited()) peers.insert(rank);
    }
    return {peers.begin(), peers.end()};
  }
  return {};
}

std::vector<int> Exchange::heard() const {
  std::set<int> peers;
  for (const auto& [step, transfer] : watched_) {
    const bool came = transfer->done && !transfer->outgoing && !transfer->error && !transfer->cancelled;
    if (came && transfer->peer >= 0) peers.insert(transfer->peer);
  }
  for (int i = 0; i < size(); ++i) {
    if (i < 64 && (matched_ >> i & 1) != 0) peers.insert(ranks_[i]);
  }
  return {peers.begin(), peers.end()};
}

}  // namespace cairn::comm
