#include "sync/islands/link.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
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
  bool comes_back() const override { return false; }
  uint64_t incarnation(int) const override { return 1; }
  void renew() override { CAIRN_CHECK(false, "islands of one world do not return to it"); }
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
    return Message{from == island_of_.end() ? -1 : from->second, 1, std::move(mail.body)};
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
  RemoteLink(comm::Bridge& bridge, comm::World& world) : bridge_(bridge), world_(world) {}

  int me() const override { return bridge_.site(); }
  int size() const override { return bridge_.sites(); }
  bool lost(int island) const override { return island != me() && !bridge_.reachable(island); }
  bool comes_back() const override { return true; }
  uint64_t incarnation(int island) const override { return bridge_.incarnation(island); }
  void renew() override { bridge_.renew(); }
  std::string refusal() const override { return bridge_.refusal(); }
  int64_t socket_bytes() const override { return bridge_.socket_bytes(); }
  std::chrono::nanoseconds now() const override { return clock_.now(); }

  void send(int to, std::vector<std::byte> body, comm::Purpose purpose) override {
    const auto bytes = static_cast<int64_t>(body.size());
    if (bridge_.send(to, bridge_.incarnation(to), std::move(body))) book(to, bytes, purpose);
  }

  std::optional<Message> next() override {
    for (const comm::SiteChannels::Relayed& one : bridge_.take_relayed()) book(one.to, one.bytes, comm::Purpose::relay);
    auto message = bridge_.next();
    if (!message) return std::nullopt;
    return Message{message->from, message->incarnation, std::move(message->body)};
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
  base::RealClock clock_;  // remote islands share no simulated clock
};

}  // namespace

std::unique_ptr<IslandLink> in_world_link(comm::Group& islands) { return std::make_unique<InWorldLink>(islands); }
std::unique_ptr<IslandLink> remote_link(comm::Bridge& bridge, comm::World& world) { return std::make_unique<RemoteLink>(bridge, world); }

}  // namespace cairn::sync
