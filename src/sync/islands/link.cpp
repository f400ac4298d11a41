#include "sync/islands/link.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/bridge/bridge.h"
#include "comm/group.h"
#include "comm/mailbox.h"
#include "comm/world.h"

namespace cairn::sync {
namespace {

constexpr auto kLossCheck = std::chrono::milliseconds(200);  // how often a wait checks for lost islands
constexpr auto kWithin = std::chrono::hours(24 * 365);       // no limit here: waits have limits of their own

std::string node_of(int rank) { return fmt::format("rank {}", rank); }

class InWorldLink final : public IslandLink {
 public:
  explicit InWorldLink(comm::Group& islands)
      : islands_(islands),
        mailbox_(islands.world(), {.name = "islands", .within = kWithin}),
        node_(mailbox_.open(node_of(islands.world().rank()))) {
    for (int island = 0; island < islands_.size(); ++island) island_of_[node_of(islands_.ranks()[static_cast<size_t>(island)])] = island;
    next_ = node_.receive();
  }

  int me() const override { return islands_.rank(); }
  int size() const override { return islands_.size(); }
  bool lost(int island) const override {
    const std::vector<int> gone = islands_.world().lost();
    return std::find(gone.begin(), gone.end(), islands_.ranks()[static_cast<size_t>(island)]) != gone.end();
  }
  std::chrono::nanoseconds now() const override { return islands_.world().clock().now(); }

  void send(int to, std::vector<std::byte> body, comm::Purpose purpose) override {
    // An island that is gone gets nothing; those that wait for it find that it is lost.
    (void)node_.send(node_of(islands_.ranks()[static_cast<size_t>(to)]), "island", std::move(body),
                     {.purpose = purpose, .within = kWithin});
  }

  std::optional<Message> next() override {
    mailbox_.progress();
    if (!next_.ready()) return std::nullopt;
    comm::MailboxMessage mail = next_.message();
    next_ = node_.receive();
    const auto from = island_of_.find(mail.from);
    return Message{from == island_of_.end() ? -1 : from->second, std::move(mail.body)};
  }

  void wait(std::chrono::nanoseconds until) override {
    const std::array<comm::Request, 2> either{next_, mailbox_.timer(std::min<std::chrono::nanoseconds>(until - now(), kLossCheck))};
    (void)mailbox_.first(either);
  }

  void warn(const std::string& what) override { islands_.world().log().warn("{}", what); }

 private:
  comm::Group& islands_;
  std::map<std::string, int> island_of_;  // by node
  comm::Mailbox mailbox_;
  comm::Node node_;
  comm::Request next_;
};

class RemoteLink final : public IslandLink {
 public:
  RemoteLink(comm::Bridge& bridge, comm::World& world)
      : bridge_(bridge), world_(world), known_(static_cast<size_t>(bridge.sites())), was_unreachable_(known_.size()) {}

  int me() const override { return bridge_.site(); }
  int size() const override { return bridge_.sites(); }
  bool lost(int island) const override {
    if (island == me()) return false;
    const auto i = static_cast<size_t>(island);
    if (known_[i] == 0 || bridge_.incarnation(island) != known_[i]) return true;
    if (!bridge_.reachable(island)) was_unreachable_[i] = true;
    return was_unreachable_[i];
  }
  void readmit(int island) override {
    known_[static_cast<size_t>(island)] = bridge_.incarnation(island);
    was_unreachable_[static_cast<size_t>(island)] = !bridge_.reachable(island);
  }
  std::chrono::nanoseconds now() const override { return clock_.now(); }

  void send(int to, std::vector<std::byte> body, comm::Purpose purpose) override {
    const auto bytes = static_cast<int64_t>(body.size());
    const auto i = static_cast<size_t>(to);
    if (bridge_.send(to, known_[i], std::move(body))) {
      book(to, bytes, purpose);
    } else if (known_[i] != 0) {
      was_unreachable_[i] = true;  // it misses a message
    }
  }

  std::optional<Message> next() override {
    for (const comm::SiteChannels::Relayed& one : bridge_.take_relayed()) book(one.to, one.bytes, comm::Purpose::relay);
    while (auto message = bridge_.next()) {  // messages of other incarnations are dropped
      const auto i = static_cast<size_t>(message->from);
      if (known_[i] == 0) known_[i] = message->incarnation;
      if (message->incarnation == known_[i]) return Message{message->from, std::move(message->body)};
    }
    return std::nullopt;
  }

  void wait(std::chrono::nanoseconds until) override { bridge_.wait(std::min<std::chrono::nanoseconds>(until - now(), kLossCheck)); }
  void warn(const std::string& what) override { world_.log().warn("{}", what); }

 private:
  void book(int to, int64_t bytes, comm::Purpose purpose) {
    const std::chrono::nanoseconds time = now();
    world_.ledger().book({world_.rank(), -1 - to, bytes, purpose, time, time});
  }

  comm::Bridge& bridge_;
  comm::World& world_;
  base::RealClock clock_;                      // remote islands share no simulated clock
  std::vector<uint64_t> known_;                // by island: the incarnation that counts; 0: none
  mutable std::vector<bool> was_unreachable_;  // by island: since it was readmitted
};

}  // namespace

std::unique_ptr<IslandLink> in_world_link(comm::Group& islands) { return std::make_unique<InWorldLink>(islands); }
std::unique_ptr<IslandLink> remote_link(comm::Bridge& bridge, comm::World& world) { return std::make_unique<RemoteLink>(bridge, world); }

}  // namespace cairn::sync
