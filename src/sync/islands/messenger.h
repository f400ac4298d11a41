#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/label.h"
#include "sync/islands/link.h"

namespace cairn::sync {

// Names a message. A reader asks for messages by sender and tag, so they may arrive early, late or not at all.
struct MessageTag {
  // The numbers are on the wire: add at the end.
  enum class Kind : uint8_t {
    // Rounds among all islands (quorum.h, merge.h).
    update,  // an island's compressed values, or what it has merged of its chunk
    chunk,   // an island's values for the owner of this chunk
    vote,    // which updates an island has
    raft,    // the log of decisions (decision_log.h)
    // Rounds among a few (noloco.cpp, gossip.cpp).
    slow_weights,
    progress,
    confirm,
    model,
    // Membership of remote islands (membership.h).
    status,
    join,
    state,
    state_sent,
    ready,
    merged_update,
    round_result,
    // Messages that count and did not arrive (one_byte/message_rounds.cpp).
    want_copy,
    copy,
    // Whether an island takes part in the reader's round among a few, and that it does not (peers.h).
    round_query,
    round_declined
  };
  Kind kind = Kind::update;
  int64_t step = 0;
  int32_t part = 0;  // tells several messages of one step apart: fragments, phases
  auto operator<=>(const MessageTag&) const = default;
};

// Tagged point-to-point messages between islands. Nothing here is collective, so an island that is late or lost blocks nobody.
//
// Arriving bytes are not trusted: signature, length and order are checked before anything is allocated, and unread messages of one island
// are limited to eight of the longest. Long messages travel in pieces of 8 MiB, so that short ones pass between them.
//
// All functions are called from one thread, except `split`.
class IslandMessenger {
 public:
  struct Parts {
    std::unique_ptr<IslandLink> link;
    uint64_t signature = 0;         // of model, layout and rule (replica_signature.h): messages with another one are refused
    int64_t max_message_bytes = 0;  // longer messages are refused
    // Keeps the memory of long messages for the next ones. The system takes tenths of a second to map and unmap a gigabyte, and a GPU that
    // waits for its host is idle meanwhile.
    bool reuse_buffers = false;
  };
  explicit IslandMessenger(Parts parts);

  int me() const;               // this island's number
  int size() const;             // islands that there may be
  bool lost(int island) const;  // it cannot be reached now
  IslandLink& link() const { return *link_; }
  uint64_t incarnation(int island) const { return link_->incarnation(island); }
  void warn(const std::string& what) { link_->warn(what); }
  // Takes a new incarnation; messages that have arrived are dropped.
  void renew();
  std::chrono::nanoseconds now() const;

  // Sends to an island; nothing happens if it is lost. `purpose` is for the traffic ledger.
  void send(int to, const MessageTag& tag, std::span<const std::byte> body, comm::Purpose purpose);
  // The same in two parts: `split` copies the body into pieces with headers and may run on any thread.
  using Pieces = std::vector<std::vector<std::byte>>;
  Pieces split(const MessageTag& tag, std::span<const std::byte> body) const;
  void send(int to, Pieces pieces, comm::Purpose purpose);
  // The message of this island with this tag; null: not here yet. `take` removes it and requires that it is here.
  const std::vector<std::byte>* find(int from, const MessageTag& tag) const;
  bool has_any(int from, MessageTag::Kind kind) const;             // whether messages of this kind have arrived, in part at least
  uint64_t incarnation_of(int from, const MessageTag& tag) const;  // of the sender of such a message; 0: not here yet
  std::vector<std::byte> take(int from, const MessageTag& tag);
  // Drops messages of this kind up to this step, and ignores those that arrive later.
  void forget(MessageTag::Kind kind, int64_t step);
  // A recycled buffer for about this many bytes, with arbitrary contents; empty if there is none.
  std::vector<std::byte> take_buffer(size_t bytes);
  void recycle(Pieces pieces);

  // Receives what has arrived, without waiting.
  void pump();
  // Receives until `done` returns true or until this time. `done` may send. False: the time is over.
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds until);

  // Messages of this kind go to the handler instead of being kept.
  struct Arrived {
    int from = 0;
    uint64_t incarnation = 0;  // the sender's
    MessageTag tag;
    std::span<const std::byte> body;
  };
  using Handler = std::function<void(const Arrived& message)>;
  void on_message(MessageTag::Kind kind, Handler handler);
  void on_pump(std::function<void()> tick) { tick_ = std::move(tick); }  // called whenever this thread has received what has arrived

  int64_t refused() const { return refused_; }  // malformed messages so far
  // When the last piece of a message of this island arrived; zero: none has.
  std::chrono::nanoseconds heard_at(int island) const { return heard_at_[static_cast<size_t>(island)]; }

 private:
  struct KeptMessage {
    uint64_t incarnation = 0;  // of its sender: one that starts again may send the same once more
    std::vector<std::byte> bytes;
  };
  struct PartialMessage {  // a message of several pieces
    uint64_t incarnation = 0;
    std::vector<std::byte> bytes;  // that have arrived
    int64_t whole = 0;             // bytes of the full message
  };
  void arrived(const IslandLink::Message& message);
  void replace_older(int from, uint64_t incarnation);

  std::unique_ptr<IslandLink> link_;
  uint64_t signature_;
  int64_t max_message_bytes_;
  std::map<std::pair<int, MessageTag>, KeptMessage> kept_;
  std::map<std::pair<int, MessageTag>, PartialMessage> partial_;
  // Messages of an earlier incarnation. A merge in the background may still read them, so they stay until the round is forgotten.
  std::vector<std::pair<MessageTag, std::vector<std::byte>>> replaced_;
  std::map<MessageTag::Kind, int64_t> forgotten_;  // the last step that is dropped
  std::map<MessageTag::Kind, Handler> handlers_;
  std::function<void()> tick_;
  std::vector<int64_t> bytes_kept_;                 // by island
  std::vector<std::chrono::nanoseconds> heard_at_;  // by island
  int64_t refused_ = 0;
  bool reuse_buffers_;
  Pieces free_buffers_;  // the longest ones, at most one per island
};

}  // namespace cairn::sync
