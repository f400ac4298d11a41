#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "comm/completion.h"
#include "comm/envelope.h"

namespace cairn::comm {

// A receive that somebody asked for.
struct Receive : Transfer {
  Envelope envelope;
  void* data = nullptr;  // where the bytes go; null once cancelled, or where they are to be viewed
  int64_t bytes = 0;
  bool viewed = false;
};

// A message that came: where its bytes are, and what keeps them there.
struct Arrival {
  int from = 0;
  Envelope envelope = {};
  int64_t bytes = 0;
  const std::byte* data = nullptr;
  std::shared_ptr<void> holder = {};
};

// Brings messages and the receives that ask for them together, whichever comes first. They fit by sender, group, sequence and step, of
// which each message has its own.
class Inbox {
 public:
  Inbox(int rank, DoneQueue& done) : rank_(rank), done_(done) {}

  void on_early(std::function<void(int from, const Envelope&)> tell) { tell_early_ = std::move(tell); }

  // Done at once where the message is there already.
  void ask(const std::shared_ptr<Receive>& receive);
  void forget(const Receive& receive);

  // Takes out the receive that waits for this message; the caller then finishes it. Null where none does, and (`refused`) where it has
  // failed because it waits for something else.
  struct Found {
    std::shared_ptr<Receive> receive;
    bool refused = false;
  };
  Found wanted(int from, const Envelope& envelope, int64_t bytes);
  void finish(const std::shared_ptr<Transfer>& transfer) { done_.finish(transfer); }
  void fail(const std::shared_ptr<Transfer>& transfer, Error error) { done_.fail(transfer, std::move(error)); }
  // What this rank waits for is not what that peer is in.
  void refuse(const std::shared_ptr<Transfer>& transfer, int from, const Envelope& theirs, const Envelope& ours);

  // Delivers it, or keeps it until somebody asks.
  void arrive(Arrival arrival);

  // No more will come from this rank: those who wait for it fail.
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
  DoneQueue& done_;
  std::unordered_map<Key, std::shared_ptr<Receive>, Hash> wanted_;
  std::unordered_map<Key, Arrival, Hash> early_;
  std::vector<bool> closed_;  // by rank
  std::function<void(int, const Envelope&)> tell_early_;
};

}  // namespace cairn::comm
