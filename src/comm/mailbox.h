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
  std::string name = "";                                       // several mailboxes of one world have several names, the same on all ranks
  std::chrono::nanoseconds within = std::chrono::seconds(60);  // the time limit of every request that gives none
  int64_t body_bytes_max = int64_t{64} << 20;                  // of one message, sent or received; more goes by offer and fetch
  int64_t unread_bytes_max = int64_t{256} << 20;               // from one rank; then its messages wait with their sender
  int64_t chunk_bytes = int64_t{1} << 20;                      // of a fetch
  int64_t chunks_in_flight = 4;
};

// What was not delivered, and why. Nothing is dropped without being counted here.
struct MailboxCounts {
  int64_t old_epoch = 0;  // came from an epoch that is over here
  int64_t no_node = 0;    // for a node that has left by now
  int64_t damaged = 0;    // with a wrong checksum
  int64_t unsent = 0;     // from a node that left before the one it wrote to was known
  int64_t ahead = 0;      // held now, for an epoch that has yet to begin here
};

// What to receive; empty: any.
struct ReceiveFilter {
  std::string from = "";
  std::string tag = "";
  std::chrono::nanoseconds within{};  // zero: as the mailbox has it
};

struct SendOptions {
  Purpose purpose = Purpose::data;    // the ledger books the body under it, names and headers as control
  std::chrono::nanoseconds within{};  // zero: as the mailbox has it
};

class Node;

// Messages between named nodes, of which each process may have several: what process groups cannot give, since nobody need take part but
// sender and reader. One per name and world, for as long as the world: used by its thread, it moves whenever anything of the world waits.
//
// Between two nodes messages of one tag arrive in order, and at most once. A node that leaves or is lost fails what waits for it, nothing
// else. Every request ends within its time limit. Messages of an epoch that is over are dropped, those of one to come are kept for it.
class Mailbox {
 public:
  explicit Mailbox(World& world, MailboxOptions options = {});
  ~Mailbox();  // waits, not long, until what was sent is gone
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  Node open(std::string name);               // a node here, announced to all ranks
  std::map<std::string, int> nodes() const;  // those announced in this epoch: node -> rank

  // A new epoch of membership. What waits in the old one, timers apart, is over (Error::Kind::cancelled), and so is what lies unread; the
  // nodes here announce themselves again, and of the others only those count that do. Who decides on it is not the mailbox's business.
  void enter(uint64_t epoch);
  uint64_t epoch() const;
  uint64_t newest_epoch() const;  // that anybody spoke of: above epoch(), this rank is behind

  Request timer(std::chrono::nanoseconds after);
  // Waits until one of them is ready and says which, the first of several. Failed ones are ready.
  size_t first(std::span<const Request> requests);

  MailboxCounts counts() const;
  void progress();  // moves what can be moved, without waiting

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// A named end of messages. It leaves when it is destroyed, before its mailbox; where an exception destroys it, others hear of it when this
// rank goes on with its mailbox, or ends.
class Node {
 public:
  Node(Node&&) noexcept = default;
  Node& operator=(Node&& other) noexcept;
  ~Node() { leave(); }

  const std::string& name() const { return name_; }

  // Done when it is on its way, which says nothing of its reader. To a node that is not known yet it waits for the
  // announcement; should this node leave first, it fails.
  Request send(std::string_view to, std::string_view tag, std::vector<std::byte> body, const SendOptions& options = {});
  Request send(std::string_view to, std::string_view tag, std::string_view text, const SendOptions& options = {});
  [[nodiscard]] Request receive(const ReceiveFilter& filter = {});

  // Lets other nodes fetch these bytes under the id, until it is withdrawn or the node leaves.
  void offer(std::string_view id, std::shared_ptr<const std::vector<std::byte>> bytes, Purpose purpose = Purpose::state);
  void withdraw(std::string_view id);
  // Fetches what is missing of it, piece by piece. The time limit is of each piece. Where it fails, `into` keeps what came.
  [[nodiscard]] Request fetch(std::string_view from, std::shared_ptr<IncomingTransfer> into, std::chrono::nanoseconds within = {});

  void leave();  // told to all; what still waits here is cancelled

 private:
  friend class Mailbox;
  Node(std::shared_ptr<Mailbox::State> state, std::string name) : state_(std::move(state)), name_(std::move(name)) {}
  std::shared_ptr<Mailbox::State> state_;  // null: left
  std::string name_;
};

}  // namespace cairn::comm
