#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/label.h"
#include "comm/mailbox/request.h"
#include "comm/mailbox/transfer.h"

namespace cairn::comm {

class World;

struct MailboxOptions {
  std::string name = "";                                       // tells the mailboxes of one world apart; the same on all ranks
  std::chrono::nanoseconds within = std::chrono::seconds(60);  // the default time limit of requests
  int64_t body_bytes_max = int64_t{64} << 20;                  // of one message; larger data goes by offer and fetch
  int64_t unread_bytes_max = int64_t{256} << 20;               // from one rank; then its messages wait at their sender
  int64_t chunk_bytes = int64_t{1} << 20;                      // of a fetch
  int64_t chunks_in_flight = 4;
};

// Messages that were not delivered, by reason. Nothing is dropped without being counted.
struct MailboxCounts {
  int64_t old_epoch = 0;  // from an epoch that is over here
  int64_t no_node = 0;    // to a node that has left
  int64_t damaged = 0;    // with a wrong checksum
  int64_t unsent = 0;     // its sender left before the receiver was announced
  int64_t ahead = 0;      // held now for an epoch that has not begun here
};

// Which messages to receive; an empty field matches all.
struct ReceiveFilter {
  std::string from = "";
  std::string tag = "";
  std::chrono::nanoseconds within{};  // zero: the default of the mailbox
};

struct SendOptions {
  Purpose purpose = Purpose::data;    // the ledger books the body under it; names and headers are control
  std::chrono::nanoseconds within{};  // zero: the default of the mailbox
};

class Node;

// Tagged messages between named nodes, for work that is not collective: only sender and receiver take part. A process may have several
// nodes. One mailbox per name and world, alive as long as the world; used by the world's thread. It makes progress whenever that waits.
//
// - Messages of one tag between two nodes arrive in order and at most once.
// - A node that leaves or is lost fails the requests that wait for it, and nothing else.
// - Every request ends within its time limit.
// - Membership has epochs: messages of a past epoch are dropped, those of a later one are held until this rank enters it.
class Mailbox {
 public:
  explicit Mailbox(World& world, MailboxOptions options = {});
  ~Mailbox();  // waits a moment for outgoing messages
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  Node open(std::string name);               // opens a node on this rank and announces it to all
  std::map<std::string, int> nodes() const;  // announced in this epoch: node -> rank

  // Enters a new epoch of membership. Requests of the old one, except timers, are cancelled and unread messages dropped. The nodes of this
  // rank announce themselves again; others exist once they do so too. Who decides on epochs is the caller's business.
  void enter(uint64_t epoch);
  uint64_t epoch() const;
  uint64_t newest_epoch() const;  // the highest epoch seen in a message; above epoch(): this rank is behind

  Request timer(std::chrono::nanoseconds after);
  // Waits until one of them is ready and returns its index (the first of several). A failed request is ready.
  size_t first(std::span<const Request> requests);

  MailboxCounts counts() const;
  void progress();  // makes progress without waiting

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// A named endpoint of messages. It leaves when it is destroyed, which must be before its mailbox. If an exception destroys it, others learn
// of it when this rank uses the mailbox again, or ends.
class Node {
 public:
  Node(Node&&) noexcept = default;
  Node& operator=(Node&& other) noexcept;
  ~Node() { leave(); }

  const std::string& name() const { return name_; }

  // Done when the message is sent, which does not mean received. A message to an unknown node waits for its announcement; it fails if this
  // node leaves first.
  Request send(std::string_view to, std::string_view tag, std::vector<std::byte> body, const SendOptions& options = {});
  Request send(std::string_view to, std::string_view tag, std::string_view text, const SendOptions& options = {});
  [[nodiscard]] Request receive(const ReceiveFilter& filter = {});

  // Lets other nodes fetch these bytes under this id, until they are withdrawn or the node leaves.
  void offer(std::string_view id, std::shared_ptr<const std::vector<std::byte>> bytes, Purpose purpose = Purpose::state);
  void withdraw(std::string_view id);
  // Fetches the missing bytes, chunk by chunk. The time limit is per chunk. After a failure `into` keeps what arrived, for the next
  // attempt.
  [[nodiscard]] Request fetch(std::string_view from, std::shared_ptr<IncomingTransfer> into, std::chrono::nanoseconds within = {});

  void leave();  // announces it; pending requests of the node are cancelled

 private:
  friend class Mailbox;
  Node(std::shared_ptr<Mailbox::State> state, std::string name) : state_(std::move(state)), name_(std::move(name)) {}
  std::shared_ptr<Mailbox::State> state_;  // null: has left
  std::string name_;
};

}  // namespace cairn::comm
