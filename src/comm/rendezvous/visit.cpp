// A machine's visit to the rendezvous: it calls the first machine, introduces itself and waits for its ranks. Visits are repeated with
// back-off until the deadline, whatever happens to the connection; rendezvous.cpp has the protocol.
#include "comm/rendezvous/visit.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <unistd.h>
#include <utility>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "base/version.h"
#include "comm/net/async_stream.h"
#include "comm/net/call_attempts.h"
#include "comm/net/setup.h"

namespace cairn::comm {
namespace {

using namespace rendezvous;
using asio::ip::tcp;
using base::Json;

constexpr auto kCallAgainAfter = std::chrono::milliseconds(100);  // at first
constexpr auto kCallAgainMost = std::chrono::milliseconds(1000);
constexpr auto kSayEvery = std::chrono::seconds(10);  // reports who is missing

Json introduction_of(const NodeSpec& spec, const RendezvousOptions& options, const std::string& caller,
                     const std::vector<NetSetup>& setups) {
  std::vector<uint16_t> ports;
  for (const NetSetup& setup : setups) ports.push_back(setup.addresses[0].outside_port);
  return {{"version", base::version()},
          {"config_fingerprint", options.config_fingerprint},
          {"caller", caller},
          {"node", spec.node},
          {"nodes", spec.nodes},
          {"count", spec.count},
          {"ranks", spec.ranks},
          {"size", spec.size},
          {"address", options.address},
          {"ports", ports},
          {"interfaces", interfaces_of(setups)}};
}

class Caller {
 public:
  Caller(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options)
      : own_(own), tls_(tls), options_(options), io_(1), attempts_(random_number(), kCallAgainAfter, kCallAgainMost) {}

  std::vector<NetSetup> run() {
    const std::string place = fmt::format("{}:{}", options_.endpoint.host, options_.endpoint.port);
    asio::co_spawn(io_, visit(), asio::detached);
    Waiting waiting(io_, options_);
    const auto for_whom = [&] { return fmt::format("{}, at {}", waits_ ? "the other machines" : "the first machine", place); };
    const bool told = waiting.until([this] { return over_; }, options_.deadline, for_whom);
    const std::string calls = attempts_.summary();
    if (!told) {
      throw Error(Error::Kind::lost_peer, fmt::format("{} within {:.0f} s{}",
                                                      waits_ ? fmt::format("{}: the other machines did not come", place)
                                                             : fmt::format("nobody answered at {}", place),
                                                      base::seconds(options_.deadline), calls.empty() ? "" : " (" + calls + ")"));
    }
    if (refused_) base::fail_input("{}: refused by the first machine: {}", place, why_);
    if (!why_.empty()) throw Error(stopped_ ? Error::Kind::cancelled : Error::Kind::lost_peer, fmt::format("{}: {}", place, why_));
    return std::move(setups_);
  }

 private:
  static uint64_t random_number() {
    uint64_t number = 0;
    std::memcpy(&number, fresh_key().data(), sizeof number);
    return number;
  }

  asio::awaitable<void> visit() {
    while (true) {
      const std::string why = co_await visit_once();
      waits_ = false;
      if (over_) co_return;
      asio::steady_timer pause(io_, attempts_.failed(why));
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  // Calls, introduces this machine and waits for the answer. Sets over_, or returns why another visit is needed.
  asio::awaitable<std::string> visit_once() {
    const auto stream = std::make_shared<AsyncStream>(io_);
    const auto limit = std::make_shared<asio::steady_timer>(io_, kPatience);
    limit->async_wait([stream](asio::error_code error) {
      if (!error) stream->close();
    });
    std::string why;
    bool handshake = false;
    try {
      co_await stream->connect(options_.endpoint.host, options_.endpoint.port);
      handshake = true;
      co_await stream->begin(&tls_, Tls::Side::client);
      handshake = false;
      listen_at_address_of(*stream);
      co_await stream->write_text(base::compact(introduction_of(own_, options_, name_, setups_)));
      limit->cancel();
      stream->socket().set_option(asio::socket_base::keep_alive(true));
      waits_ = true;
      const Json said = base::parse_json(co_await stream->read_text(kTextBytesMax));
      over_ = true;
      understand(said, stream->socket().remote_endpoint().address().to_string());
      if (why_.empty()) co_await stream->write_value(uint8_t{1});
    } catch (const asio::system_error& error) {
      why = error.code().message();
    } catch (const Error& error) {
      why = error.what();
      if (error.kind() == Error::Kind::bad_input && handshake) refuse_key();
      over_ = over_ || (error.kind() == Error::Kind::bad_input && !waits_);  // this machine cannot listen
    }
    if (over_ && why_.empty()) why_ = why;
    if (!over_ && !waits_ && limit->expiry() <= asio::steady_timer::clock_type::now())
      why = fmt::format("no answer within {:.0f} s", base::seconds(kPatience));
    limit->cancel();
    co_return why;
  }

  void refuse_key() {
    over_ = refused_ = true;
    why_ = "it does not have our key: all machines need the same key file (or certificates of the same authority)";
  }

  // The ranks of this machine listen at the address from which it reaches the first one.
  void listen_at_address_of(const AsyncStream& stream) {
    const std::string address = stream.socket().local_endpoint().address().to_string();
    if (address == listens_at_) return;  // from an earlier visit
    for (const NetSetup& setup : std::exchange(setups_, {})) {
      for (const int fd : setup.fds())
        if (fd >= 0) ::close(fd);
    }
    setups_ = make_machine_setups(first_ranks(own_.count), address, options_.more_interfaces);
    listens_at_ = address;
  }

  void understand(const Json& said, const std::string& host) {
    try {
      if (said.contains("gave_up")) {
        stopped_ = said.at("stopped").get<bool>();
        why_ = "the first machine gave up: " + said["gave_up"].get<std::string>();
        return;
      }
      if (said.contains("refused")) {
        refused_ = true;
        why_ = said["refused"].get<std::string>();
        return;
      }
      std::vector<RankAddress> addresses;
      for (const Json& one : said.at("seats")) {
        RankAddress rank_address{.machine = one.at("machine"), .port = 0, .host = one.at("host"), .outside_port = one.at("port")};
        if (rank_address.host.empty()) rank_address.host = host;  // the first machine, as this one reaches it
        rank_address.more_interfaces = interfaces_from(one.at("interfaces"), 1).at(0);
        addresses.push_back(std::move(rank_address));
      }
      const std::vector<int> ranks = said.at("ranks");
      const auto key = said.at("key").get<Key>();
      for (size_t i = 0; i < setups_.size(); ++i) {
        setups_[i].rank = ranks.at(i);
        addresses.at(static_cast<size_t>(ranks[i])).port = setups_[i].addresses[0].port;
      }
      set_addresses(setups_, addresses, key);
    } catch (const std::logic_error&) {
      why_ = "the first machine does not speak this protocol";
    }
  }

  const NodeSpec& own_;
  const Tls& tls_;
  const RendezvousOptions& options_;
  asio::io_context io_;
  CallAttempts attempts_;
  const std::string name_ = fmt::format("{:016x}", random_number());
  std::string listens_at_;
  std::vector<NetSetup> setups_;
  bool waits_ = false, over_ = false, refused_ = false, stopped_ = false;
  std::string why_;  // set: this machine does not take part
};

}  // namespace

base::Json rendezvous::interfaces_of(const std::vector<NetSetup>& setups) {
  Json interfaces = Json::array();
  for (size_t i = 0; i < setups.front().addresses[0].more_interfaces.size(); ++i) {
    std::vector<uint16_t> ports;
    for (const NetSetup& setup : setups) ports.push_back(setup.addresses[0].more_interfaces[i].port);
    interfaces.push_back({{"host", setups.front().addresses[0].more_interfaces[i].host}, {"ports", ports}});
  }
  return interfaces;
}

std::vector<std::vector<NetEndpoint>> rendezvous::interfaces_from(const Json& said, size_t ranks) {
  constexpr size_t kHostBytes = 64, kMost = 16;  // an address, not a name
  std::vector<std::vector<NetEndpoint>> by_rank(ranks);
  if (!said.is_array() || said.size() > kMost) throw std::invalid_argument("interfaces");
  for (const Json& one : said) {
    const std::string host = one.at("host");
    const std::vector<uint16_t> ports = one.at("ports");
    if (ports.size() != ranks || host.empty() || host.size() > kHostBytes) throw std::invalid_argument("interfaces");
    for (size_t rank = 0; rank < ranks; ++rank) by_rank[rank].push_back({host, ports[rank]});
  }
  return by_rank;
}

bool rendezvous::Waiting::until(const std::function<bool()>& done, std::chrono::nanoseconds deadline,
                                const std::function<std::string()>& for_whom) {
  const std::chrono::nanoseconds end = clock_.now() + deadline;
  std::chrono::nanoseconds said = clock_.now();
  while (!done()) {
    const std::chrono::nanoseconds now = clock_.now();
    if (options_.stop && options_.stop->requested())
      throw Error(Error::Kind::cancelled, fmt::format("stopped while waiting for {}", for_whom()));
    if (now >= end) return false;
    if (now - said > kSayEvery) {
      said = now;
      if (options_.tell) options_.tell(fmt::format("waiting for {} ({:.0f} s more)", for_whom(), base::seconds(end - now)));
    }
    io_.restart();
    io_.run_one_for(std::min<std::chrono::nanoseconds>(kGlance, end - now));
  }
  return true;
}

std::vector<NetSetup> visit_rendezvous(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options) {
  return Caller(own, tls, options).run();
}

}  // namespace cairn::comm
