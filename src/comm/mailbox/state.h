#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mailbox.h"
#include "comm/mailbox/channel.h"
#include "comm/mailbox/directory.h"
#include "comm/mailbox/frame.h"
#include "comm/transport.h"
#include "comm/world.h"

namespace cairn::comm {

// The inside of a Request. It keeps the mailbox's state alive, which drops unfinished requests when the mailbox ends.
struct Request::State final : Work::State {
  enum class Kind : uint8_t { send, receive, timer, fetch };
  State(std::shared_ptr<Mailbox::State> of, Kind what_kind, std::chrono::nanoseconds within, std::string description);

  bool ready() const override;
  void wait() override;
  void succeed();
  void fail(Error failure);

  std::shared_ptr<Mailbox::State> owner;
  Kind kind;
  std::chrono::nanoseconds begun{}, due{};
  std::string what;  // "node a sends x to node b"
  bool complete = false;
  bool timed_out = false;
  std::optional<Error> error;
  std::string node, from, tag;  // of a receive: the receiving node and the filter
  std::optional<MailboxMessage> message;
};

// The inside of a Mailbox: delivers frames to nodes and matches them with requests. Only this class and time limits change requests.
struct Mailbox::State : std::enable_shared_from_this<Mailbox::State> {
  using Pending = std::shared_ptr<Request::State>;
  struct Unread {
    MailboxMessage message;
    int rank = -1;
  };
  struct NodeQueue {  // of one local node: messages without a receive, receives without a message
    std::deque<Unread> unread;
    std::deque<std::weak_ptr<Request::State>> waiting;
  };
  struct Offer {
    std::shared_ptr<const std::vector<std::byte>> bytes;
    uint64_t checksum = 0;
    Purpose purpose = Purpose::state;
  };
  struct Fetch {
    std::string node, from;
    std::shared_ptr<IncomingTransfer> into;
    std::weak_ptr<Request::State> request;
    std::chrono::nanoseconds within{};
    int64_t asked = 0;  // bytes requested so far
    int trials = 0;
  };

  State(World& world, MailboxOptions options);
  void start();  // call once a shared_ptr owns it
  void close();

  std::chrono::nanoseconds now() const { return transport.clock().now(); }
  std::chrono::nanoseconds limit(std::chrono::nanoseconds within) const { return within.count() > 0 ? within : options.within; }
  Pending make(Request::State::Kind kind, std::chrono::nanoseconds within, std::string what);
  // Makes progress until `done` or this time. A timer is always pending, so that a virtual network does not see a deadlock.
  void drive(const std::function<bool()>& done, std::chrono::nanoseconds until, const std::string& doing);
  void settle();  // handles lost ranks and leaving nodes
  void expire(Request::State& request);
  Error overdue(const Request::State& request) const;

  // Frames.
  void tell_all(MailboxFrame::Kind kind, const std::string& node);
  void route(MailboxFrame&& frame, Pending request);  // `request` may be null
  void arrive(int rank, MailboxFrame&& frame);
  void handle(int rank, MailboxFrame&& frame);
  void broken(int rank, const Error& error);
  void lose(const LostPeer& loss);
  void release(int rank, int64_t bytes);
  static int64_t weight(const MailboxMessage& message) { return static_cast<int64_t>(message.body.size()) + 3 * kNameBytesMax; }

  // Nodes.
  void put(MailboxMessage&& message, int rank);
  void receive(const Pending& request);
  void fail_waiting_for(const std::string& node);
  void leave(const std::string& node);
  void enter(uint64_t next);

  // Transfers (fetch.cpp).
  void fetch(Fetch&& fetch, const Pending& request);
  void ask_more(uint64_t number, Fetch& fetch);
  void answer(const MailboxFrame& ask);
  void take_chunk(MailboxFrame&& chunk);
  void ask_again(uint64_t number);
  void fail_fetch(uint64_t number, const Error& why);
  void fail_fetches(const std::function<bool(const Fetch&)>& which, const Error& why);

  World& world;
  Transport& transport;
  MailboxOptions options;
  uint64_t epoch = 0, newest = 0;
  MailboxCounts counts;
  bool closed = false;
  size_t lost_peers_seen = 0;
  std::map<int, LostPeer> gone;      // by rank
  std::vector<std::string> leaving;  // nodes that an exception destroyed; announced if this rank goes on
  NodeDirectory directory;
  std::map<std::string, NodeQueue, std::less<>> queues;                                          // the nodes of this rank
  std::map<std::string, std::deque<std::pair<MailboxFrame, Pending>>, std::less<>> unannounced;  // messages to nodes that are not announced
  std::deque<std::pair<int, MailboxFrame>> ahead;                                                // frames of later epochs
  std::map<std::pair<std::string, std::string>, Offer> offers;                                   // by node and id
  std::map<uint64_t, Fetch> fetches;                                                             // by attempt number
  uint64_t next_fetch = 1;
  std::vector<std::unique_ptr<Channel>> channels;  // by rank; last: they call the members above
};

}  // namespace cairn::comm
