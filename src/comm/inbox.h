#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "comm/completion.h"
#include "comm/envelope.h"

namespace cairn::comm {

// A posted receive.
struct Receive : Transfer {
  Envelope envelope;
  void* data = nullptr;  // the destination; null once cancelled, and for a recv_view
  int64_t bytes = 0;
  bool viewed = false;
};

// A message that arrived: its bytes, and what keeps them alive.
struct Arrival {
  int from = 0;
  Envelope envelope = {};
  int64_t bytes = 0;
  const std::byte* data = nullptr;
  std::shared_ptr<void> holder = {};
};

// Matches messages with posted receives, whichever comes first, by (sender, group, sequence, step). Each message has its own key.
class Inbox {
 public:
  Inbox(int rank, CompletionQueue& done) : rank_(rank), done_(done) {}

  void on_early(std::function<void(int from, const Envelope&)> tell) { tell_early_ = std::move(tell); }

  // Posts a receive. It is done at once if the message has arrived already.
  void ask(const std::shared_ptr<Receive>& receive);
  void forget(const Receive& receive);

  // Removes and returns the receive that waits for this message; the caller then finishes it. Null: none waits, or (`refused`) it waits for
  // another signature and has failed.
  struct Found {
    std::shared_ptr<Receive> receive;
    bool refused = false;
  };
  Found wanted(int from, const Envelope& envelope, int64_t bytes);
  void finish(const std::shared_ptr<Transfer>& transfer) { done_.finish(transfer); }
  void fail(const std::shared_ptr<Transfer>& transfer, Error error) { done_.fail(transfer, std::move(error)); }
  // Fails a transfer because of a mismatch with that peer.
  void refuse(const std::shared_ptr<Transfer>& transfer, int from, const Envelope& theirs, const Envelope& ours);

  // Delivers a message, or keeps it until its receive is posted.
  void arrive(Arrival arrival);

  // No more messages will come from this rank: receives that wait for it fail.
  void close(int from);
  void clear() { early_.clear(); }

 private:
  struct Key {
    int from;
    uint64_t group, sequence;
    uint32_t step;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t h =
          key.group ^ (key.sequence * 0x9e3779b97f4a7c15) ^ (static_cast<uint64_t>(key.step) << 32) ^ static_cast<uint64_t>(key.from);
      h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9;
      return h ^ (h >> 32);
    }
  };
  static Key key(int from, const Envelope& envelope) { return {from, envelope.group, envelope.sequence, envelope.step}; }
  bool fits(const std::shared_ptr<Receive>& receive, int from, const Envelope& envelope, int64_t bytes);
  void deliver(const std::shared_ptr<Receive>& receive, Arrival&& arrival);

  int rank_;
  CompletionQueue& done_;
  std::unordered_map<Key, std::shared_ptr<Receive>, Hash> wanted_;
  std::unordered_map<Key, Arrival, Hash> early_;
  std::vector<bool> closed_;  // by rank
  std::function<void(int, const Envelope&)> tell_early_;
};

}  // namespace cairn::comm
