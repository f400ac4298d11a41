// Rendezvous of the machines of a run (as torchrun's --rdzv-endpoint). The first machine is the host; the others call it.
//
//   caller -> host     TLS handshake with the run's key, then JSON: version, config fingerprint, node number or ranks, ports of its ranks
//   host               checks it; a machine that does not fit gets {"refused": "why"}. Waits for all machines, until the deadline.
//   host -> caller     JSON: the addresses of all ranks, the ranks of this machine, a fresh key for the connections between ranks
//   caller -> host     one byte: understood
// Ranks are numbered machine by machine, unless a launcher has numbered them. A machine that was restarted replaces its first connection.
// Callers that fail the TLS handshake are reported and ignored.
//
// A caller repeats its visit, with back-off, until the deadline: the host may not listen yet, may have too many callers without the key, or
// may have been started again. Only a host with the key ends it: by {"refused": "why"}, or by {"gave_up": "why"} when it stops waiting.
#include "comm/rendezvous/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/version.h"
#include "comm/net/listen.h"
#include "comm/net/setup.h"
#include "comm/net/unauthenticated_peers.h"
#include "comm/rendezvous/visit.h"

namespace cairn::comm {
namespace {

using namespace rendezvous;
using asio::ip::tcp;
using base::Json;

constexpr auto kTellDeadline = std::chrono::seconds(30);   // for all machines to receive the addresses
constexpr auto kGiveUpDeadline = std::chrono::seconds(1);  // for all machines to receive that the host gave up
constexpr int kRanksMax = 65536;

std::string there(const tcp::socket& socket) { return socket.remote_endpoint().address().to_string(); }

// A machine that has joined, as the host sees it.
struct JoinedNode {
  NodeSpec spec;
  std::string host;    // as others reach it; empty: the host itself
  std::string caller;  // the same in all visits of one process
  std::vector<uint16_t> ports;
  std::vector<std::vector<NetEndpoint>> more_interfaces = {};  // by its ranks
  std::optional<AsyncStream> stream;                           // none: this is the host itself

  std::string name() const {
    return spec.numbered() ? fmt::format("the machine of rank {}", spec.first()) : fmt::format("machine {}", spec.node);
  }
};

std::string refusal(const std::string& why) { return base::compact(Json{{"refused", why}}); }

// The world ranks of each machine, in the order of the machines.
std::vector<std::vector<int>> number_ranks(const std::vector<const JoinedNode*>& joined_nodes) {
  std::vector<std::vector<int>> ranks;
  int next = 0;
  for (const JoinedNode* joined : joined_nodes) {
    if (joined->spec.numbered()) {
      ranks.push_back(joined->spec.ranks);
      continue;
    }
    ranks.push_back(first_ranks(joined->spec.count));
    for (int& rank : ranks.back()) rank += next;
    next += joined->spec.count;
  }
  return ranks;
}

// The first machine.
class Host {
 public:
  Host(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options) : own_(own), tls_(tls), options_(options), io_(1) {}

  std::vector<NetSetup> run() {
    const auto [listener, address] = listen();
    std::vector<NetSetup> setups = make_machine_setups(first_ranks(own_.count), address, options_.more_interfaces);
    JoinedNode& self = joined_[own_.first()];
    self.spec = own_;
    for (const NetSetup& setup : setups) self.ports.push_back(setup.addresses[0].outside_port);
    self.more_interfaces = interfaces_from(interfaces_of(setups), setups.size());
    UnauthenticatedPeers unauthenticated(
        io_, listener.fd, &tls_, kPatience, [this](AsyncStream& caller) { return welcome(caller); },
        [this](const std::string& from) { tell_user(fmt::format("a caller at {} was refused: it does not have this run's key", from)); });
    Waiting waiting(io_, options_);
    try {
      const auto all_here = [this] {
        forget_gone();
        return missing().empty();
      };
      if (!waiting.until(all_here, options_.deadline, [this] { return missing(); }))
        throw Error(Error::Kind::lost_peer, fmt::format("{} did not come to {}:{} within {:.0f} s", missing(), options_.endpoint.host,
                                                        listener.port, base::seconds(options_.deadline)));
    } catch (const Error& error) {
      give_up(error);
      throw;
    }
    unauthenticated.close();
    tell_all(waiting);
    assign_addresses(setups);
    return setups;
  }

 private:
  // Listens at the endpoint if that is an address of this machine; else (it is behind another name) at the address that leads there.
  std::pair<Listener, std::string> listen() const {
    const std::string address = address_to_listen(options_.endpoint.host, options_.endpoint.port);
    return {listen_at(address, options_.endpoint.port), address};
  }

  // A machine that hung up may come again.
  void forget_gone() {
    for (auto one = joined_.begin(); one != joined_.end();) {
      const bool gone = has_gone(one->second);
      if (gone) tell_user(fmt::format("{} is gone again: its connection was closed", one->second.name()));
      one = gone ? joined_.erase(one) : std::next(one);
    }
  }

  // Tells all that wait here why they need not wait any longer. Those that do not hear it in time notice the closed connection.
  void give_up(const Error& why) {
    const std::string answer = base::compact(Json{{"gave_up", why.sentence()}, {"stopped", why.kind() == Error::Kind::cancelled}});
    for (auto& [_, joined] : joined_) {
      if (!joined.stream) continue;
      ++untold_;
      asio::co_spawn(io_, joined.stream->write_text(answer), [this](const std::exception_ptr&) { --untold_; });
    }
    const base::RealClock clock;
    while (untold_ > 0 && clock.now() < kGiveUpDeadline) {
      io_.restart();
      io_.run_one_for(kGlance);
    }
  }

  // The missing machines or ranks, as text.
  std::string missing() const {
    std::vector<int> absent;
    if (own_.numbered()) {
      std::set<int> there;
      for (const auto& [_, joined] : joined_) there.insert(joined.spec.ranks.begin(), joined.spec.ranks.end());
      for (int rank = 0; rank < own_.size; ++rank) {
        if (!there.contains(rank)) absent.push_back(rank);
      }
      return absent.empty() ? "" : fmt::format("rank{} {}", absent.size() > 1 ? "s" : "", fmt::join(absent, ", "));
    }
    for (int node = 0; node < own_.nodes; ++node) {
      if (!joined_.contains(node)) absent.push_back(node);
    }
    return absent.empty() ? "" : fmt::format("machine{} {}", absent.size() > 1 ? "s" : "", fmt::join(absent, ", "));
  }

  asio::awaitable<void> welcome(AsyncStream& caller) {
    const Json said = base::parse_json(co_await caller.read_text(kTextBytesMax));
    JoinedNode joined;
    std::string wrong = check(said, joined);
    if (wrong.empty()) {
      const std::string address = said["address"].get<std::string>();
      joined.host = address.empty() ? there(caller.socket()) : address;
      tell_user(
          fmt::format("{} is here, {}, with {} rank{}", joined.name(), joined.host, joined.spec.count, joined.spec.count == 1 ? "" : "s"));
      joined.stream.emplace(std::move(caller));
      const int number = joined.spec.first();
      joined_.insert_or_assign(number, std::move(joined));
    } else {
      tell_user("a machine was refused: " + wrong);
      const std::string answer = refusal(wrong);
      co_await caller.write_text(answer);
    }
  }

  void tell_user(const std::string& what) const {
    if (options_.tell) options_.tell(what);
  }

  // Empty, or why this machine cannot be one of ours.
  std::string check(const Json& said, JoinedNode& joined) {
    try {
      joined.spec = {.node = said.at("node"),
                     .nodes = said.at("nodes"),
                     .count = said.at("count"),
                     .ranks = said.at("ranks"),
                     .size = said.at("size")};
      joined.ports = said.at("ports").get<std::vector<uint16_t>>();
      joined.caller = said.value("caller", "");
      joined.more_interfaces = interfaces_from(said.value("interfaces", Json::array()), joined.ports.size());
      const std::string version = said.at("version"), config_fingerprint = said.at("config_fingerprint");
      said.at("address").get<std::string>();
      if (version != base::version()) return fmt::format("it runs Cairn {}, the first machine {}", version, base::version());
      if (config_fingerprint != options_.config_fingerprint)
        return fmt::format("its configuration differs: `{}` on machine 0, `{}` there. Start all machines with the same options.",
                           options_.config_fingerprint, config_fingerprint);
    } catch (const Json::exception&) {
      return "it does not speak this protocol";
    } catch (const std::invalid_argument&) {
      return "its interfaces make no sense";
    }
    const NodeSpec& spec = joined.spec;
    if (spec.count < 1 || spec.count > kRanksMax || joined.ports.size() != static_cast<size_t>(spec.count))
      return "its number of ranks makes no sense";
    if (spec.numbered() != own_.numbered())
      return "its ranks are numbered by a launcher and those of the first machine are not, or the other way round";
    if (spec.numbered()) {
      if (spec.size != own_.size) return fmt::format("it counts {} ranks in all, the first machine {}", spec.size, own_.size);
      if (spec.ranks.size() != static_cast<size_t>(spec.count)) return "its number of ranks makes no sense";
      for (const int rank : spec.ranks) {
        if (rank < 0 || rank >= own_.size) return fmt::format("it has a rank {} of {}", rank, own_.size);
        for (auto& [_, other] : joined_) {
          const auto& taken = other.spec.ranks;
          if (std::find(taken.begin(), taken.end(), rank) != taken.end() && !may_replace(joined, other))
            return fmt::format("rank {} is there already", rank);
        }
      }
      return "";
    }
    if (spec.nodes != own_.nodes)
      return fmt::format("--nnodes = {}: the first machine was started with --nnodes = {}", spec.nodes, own_.nodes);
    if (spec.node < 1 || spec.node >= own_.nodes) return fmt::format("it is machine {} (--node-rank) of {}", spec.node, own_.nodes);
    const auto same = joined_.find(spec.node);
    if (same != joined_.end() && !may_replace(joined, same->second))
      return fmt::format("there is a machine {} (--node-rank) already", spec.node);
    return "";
  }

  // Whether this is a visit of the same process, or of one that was restarted.
  static bool may_replace(const JoinedNode& joined, JoinedNode& earlier) {
    return (!joined.caller.empty() && joined.caller == earlier.caller) || has_gone(earlier);
  }

  // Whether the connection of a machine has closed.
  static bool has_gone(JoinedNode& joined) {
    if (!joined.stream) return false;
    char byte = 0;
    const int fd = joined.stream->socket().native_handle();
    const ssize_t got = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  std::vector<const JoinedNode*> in_order() const {
    std::vector<const JoinedNode*> all;
    for (const auto& [_, joined] : joined_) all.push_back(&joined);
    return all;
  }

  // Numbers the ranks and sends every machine all addresses and its own ranks.
  void tell_all(Waiting& waiting) {
    key_ = fresh_key();
    const auto ranks = number_ranks(in_order());
    for (const auto& some : ranks) addresses_.resize(addresses_.size() + some.size());
    size_t machine = 0;
    for (const auto& [_, joined] : joined_) {
      for (size_t i = 0; i < ranks[machine].size(); ++i) {
        RankAddress& rank_address = addresses_[static_cast<size_t>(ranks[machine][i])];
        rank_address = {.machine = static_cast<int>(machine),
                        .port = 0,
                        .host = joined.host,
                        .outside_port = joined.ports[i],
                        .more_interfaces = joined.more_interfaces[i]};
      }
      ++machine;
    }
    Json addresses = Json::array();
    for (const RankAddress& rank_address : addresses_) {
      Json interfaces = Json::array();
      for (const NetEndpoint& one : rank_address.more_interfaces)
        interfaces.push_back({{"host", one.host}, {"ports", Json::array({one.port})}});
      addresses.push_back({{"machine", rank_address.machine},
                           {"host", rank_address.host},
                           {"port", rank_address.outside_port},
                           {"interfaces", interfaces}});
    }
    machine = 0;
    for (auto& [_, joined] : joined_) {
      const std::vector<int>& its = ranks[machine++];
      if (joined.stream) {
        ++untold_;
        asio::co_spawn(io_, tell(joined, base::compact(Json{{"seats", addresses}, {"ranks", its}, {"key", key_}})), asio::detached);
      } else {
        own_ranks_ = its;
      }
    }
    const bool told = waiting.until([this] { return untold_ == 0; }, kTellDeadline, [] { return "all machines to hear of each other"; });
    if (!told) failure_ = "some machine did not answer";
    if (!failure_.empty()) throw Error(Error::Kind::lost_peer, failure_);
  }

  asio::awaitable<void> tell(JoinedNode& joined, std::string text) {
    try {
      co_await joined.stream->write_text(text);
      co_await joined.stream->read_value<uint8_t>();  // understood
    } catch (const std::exception& error) {
      failure_ = fmt::format("{} was lost before the start: {}", joined.name(), error.what());
    }
    --untold_;
  }

  void assign_addresses(std::vector<NetSetup>& setups) const {
    std::vector<RankAddress> addresses = addresses_;
    for (size_t i = 0; i < setups.size(); ++i) {
      setups[i].rank = own_ranks_[i];
      addresses[static_cast<size_t>(own_ranks_[i])].port = setups[i].addresses[0].port;
    }
    set_addresses(setups, addresses, key_);
  }

  const NodeSpec& own_;
  const Tls& tls_;
  const RendezvousOptions& options_;
  asio::io_context io_;
  std::map<int, JoinedNode> joined_;
  std::vector<RankAddress> addresses_;
  std::vector<int> own_ranks_;
  Key key_{};
  int untold_ = 0;
  std::string failure_;
};

}  // namespace

RendezvousEndpoint parse_rendezvous_endpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || error != std::errc() || end != digits.data() + digits.size() || port == 0)
    base::fail_input("--rendezvous {}: not an endpoint. Say HOST:PORT, as in 10.0.0.1:29400.", text);
  return {std::string(host), port};
}

std::vector<NetSetup> rendezvous_nodes(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options) {
  return own.is_host() ? Host(own, tls, options).run() : visit_rendezvous(own, tls, options);
}

}  // namespace cairn::comm
