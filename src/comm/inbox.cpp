// Message matching: a hash table of posted receives and one of unexpected messages, by (sender, group, sequence, step).
#include "comm/inbox.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/transport.h"

namespace cairn::comm {

void Inbox::ask(const std::shared_ptr<Receive>& receive) {
  const Key at = key(receive->peer, receive->envelope);
  if (const auto found = early_.find(at); found != early_.end()) {
    Arrival arrival = std::move(found->second);
    early_.erase(found);
    if (fits(receive, arrival.from, arrival.envelope, arrival.bytes)) deliver(receive, std::move(arrival));
    return;
  }
  if (static_cast<size_t>(receive->peer) < closed_.size() && closed_[receive->peer]) {
    return done_.fail(receive, peer_has_left(receive->peer, receive->envelope));
  }
  const bool first = wanted_.emplace(at, receive).second;
  CAIRN_CHECK(first, "message {} of operation {} is asked for twice", receive->envelope.step, receive->envelope.sequence);
}

void Inbox::forget(const Receive& receive) {
  const auto found = wanted_.find(key(receive.peer, receive.envelope));
  if (found != wanted_.end() && found->second.get() == &receive) wanted_.erase(found);
}

Inbox::Found Inbox::wanted(int from, const Envelope& envelope, int64_t bytes) {
  const auto found = wanted_.find(key(from, envelope));
  if (found == wanted_.end()) return {};
  std::shared_ptr<Receive> receive = std::move(found->second);
  wanted_.erase(found);
  if (!fits(receive, from, envelope, bytes)) return {nullptr, true};
  return {std::move(receive), false};
}

void Inbox::arrive(Arrival arrival) {
  const Found found = wanted(arrival.from, arrival.envelope, arrival.bytes);
  if (found.refused) return;
  if (found.receive) return deliver(found.receive, std::move(arrival));
  const int from = arrival.from;
  const Envelope envelope = arrival.envelope;
  const Key at = key(from, envelope);
  if (!early_.emplace(at, std::move(arrival)).second) {
    throw Error(Error::Kind::lost_peer, fmt::format("sent message {} of operation {} twice", envelope.step, envelope.sequence));
  }
  if (tell_early_) tell_early_(from, envelope);
}

void Inbox::close(int from) {
  if (closed_.size() <= static_cast<size_t>(from)) closed_.resize(static_cast<size_t>(from) + 1);
  closed_[from] = true;
  for (auto one = wanted_.begin(); one != wanted_.end();) {
    if (one->first.from != from) {
      ++one;
      continue;
    }
    done_.fail(one->second, peer_has_left(from, one->second->envelope));
    one = wanted_.erase(one);
  }
}

bool Inbox::fits(const std::shared_ptr<Receive>& receive, int from, const Envelope& envelope, int64_t bytes) {
  if (envelope.signature == receive->envelope.signature && bytes == receive->bytes) return true;
  refuse(receive, from, envelope, receive->envelope);
  return false;
}

void Inbox::refuse(const std::shared_ptr<Transfer>& transfer, int from, const Envelope& theirs, const Envelope& ours) {
  done_.fail(transfer, mismatch_error(from, theirs, rank_, ours.signature, ours.what));
  if (tell_early_) tell_early_(from, theirs);
}

void Inbox::deliver(const std::shared_ptr<Receive>& receive, Arrival&& arrival) {
  if (receive->viewed) {
    receive->view = arrival.data;
    receive->held = std::move(arrival.holder);
  } else if (arrival.bytes > 0) {
    std::memcpy(receive->data, arrival.data, static_cast<size_t>(arrival.bytes));
  }
  done_.finish(receive);
}

}  // namespace cairn::comm
