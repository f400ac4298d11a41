// Connects every pair of ranks: rank r calls all ranks below it and accepts calls of those above. So each pair has one connection (or as
// many as it has channels, each with its number), and no rank waits for a particular order. Each connection is authenticated (handshake.h);
// between machines TLS authenticates it before that. A call to a rank that hangs up or does not answer is repeated, since its listener may
// be full of unauthenticated callers.
//
// A process that has died closes its listener, so a refused call means that the rank is lost. This rank also tries the listeners of those
// that should call it, one at a time: otherwise it would learn of a death before the first connection only at the deadline. A listener that
// was never seen may be behind a firewall that lets calls out but not in; such a rank gets more time.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop.h"
#include "comm/net/call_attempts.h"
#include "comm/net/channel_plan.h"
#include "comm/net/handshake.h"
#include "comm/net/peer.h"
#include "comm/net/unauthenticated_peers.h"

namespace cairn::comm {
namespace {

constexpr auto kCallAgainAfter = std::chrono::milliseconds(50);  // at first
constexpr auto kCallAgainMost = std::chrono::milliseconds(1000);
constexpr auto kGlance = std::chrono::milliseconds(100);      // how often a stop request is checked
constexpr auto kProbeEvery = std::chrono::milliseconds(250);  // of the listeners of ranks that have not called
constexpr int kRefusedProbes = 2;                             // in a row, of a listener that was there: the process has ended
constexpr int kRefusedProbesUnseen = 60;                      // the same, of one that may be behind a firewall

// The calling side of the handshake (handshake.h). Throws if the other side is not rank `to` of this run.
asio::awaitable<void> identify_to(AsyncStream& stream, const NetSetup& setup, int to, int channel, int channels, bool ended = false) {
  Hello hello = make_hello(setup, to, channel, channels);
  if (ended) hello.magic.back() = Hello::kEnded;
  co_await stream.write_value(hello);
  const auto challenge = co_await stream.read_value<Challenge>();
  const Bytes32 proof = make_proof(setup, hello, challenge);
  co_await stream.write_value(proof);
  co_await stream.read_value<uint8_t>();
}

// The called side. Returns what the caller says of itself; throws if it is not a rank of this run that should call.
asio::awaitable<Hello> identify_caller(AsyncStream& stream, const NetSetup& setup) {
  const auto hello = co_await stream.read_value<Hello>();
  const Challenge challenge = make_challenge(setup, hello);
  co_await stream.write_value(challenge);
  const auto proof = co_await stream.read_value<Bytes32>();
  check_proof(setup, hello, challenge, proof);
  co_await stream.write_value(uint8_t{1});
  co_return hello;
}

class PeerConnector {
 public:
  PeerConnector(const NetSetup& setup, const NetOptions& options) : io_(1), setup_(setup), options_(options), plan_(setup, options) {
    connected_.resize(static_cast<size_t>(setup.size));
    for (int rank = 0; rank < setup.size; ++rank) {
      if (rank == setup.rank) continue;
      connected_[static_cast<size_t>(rank)].resize(static_cast<size_t>(plan_.channels(rank)));
      missing_ += plan_.channels(rank);
    }
    if (setup.outside_fd >= 0) tls_.emplace(setup.key);
  }

  ~PeerConnector() {
    for (const auto& channels : connected_)
      for (const Connection& one : channels)
        if (one.fd >= 0) ::close(one.fd);
  }

  std::vector<std::vector<Connection>> run() {
    const auto welcome = [this](AsyncStream& caller) -> asio::awaitable<void> {
      const Hello hello = co_await identify_caller(caller, setup_);
      if (hello.magic.back() == Hello::kEnded) {
        if (is_missing(hello.from)) lose(hello.from, "its process has ended before it connected, as its agent says");
      } else if (hello.channels != plan_.channels(hello.from)) {
        lose(hello.from, fmt::format("it has {} channels to this rank, and this rank {} to it: --channels must be the same on all machines",
                                     hello.channels, plan_.channels(hello.from)));
      } else {
        keep(hello.from, hello.channel, plane_at(caller, hello.from, hello.channel), caller);
      }
    };
    std::optional<UnauthenticatedPeers> inside, outside;
    std::deque<UnauthenticatedPeers> interfaces;
    for (size_t i = 0; tls_ && i < setup_.interface_fds.size(); i += 2)  // TCP, UDP of each
      interfaces.emplace_back(io_, setup_.interface_fds[i], &*tls_, options_.handshake_deadline, welcome);
    if (setup_.listener_fd >= 0) inside.emplace(io_, setup_.listener_fd, nullptr, options_.handshake_deadline, welcome);
    if (tls_) outside.emplace(io_, setup_.outside_fd, &*tls_, options_.handshake_deadline, welcome);
    for (int rank = 0; rank < setup_.rank; ++rank)
      for (int channel = 0; channel < plan_.channels(rank); ++channel) asio::co_spawn(io_, call(rank, channel), asio::detached);
    asio::co_spawn(io_, probe_missing(), asio::detached);
    const base::RealClock clock;
    while (missing_ > 0 && !failure_ && clock.now() < options_.connect_deadline) {
      if (options_.stop && options_.stop->requested())
        failure_ = Error(Error::Kind::cancelled, "stopped while the ranks connected to each other");
      io_.run_one_for(std::min<std::chrono::nanoseconds>(kGlance, options_.connect_deadline - clock.now()));
    }
    over_ = true;
    if (inside) inside->close();
    if (outside) outside->close();
    for (UnauthenticatedPeers& one : interfaces) one.close();
    io_.restart();
    io_.poll();  // lets interrupted handshakes end
    if (failure_) throw Error(*failure_);
    if (missing_ > 0) throw absent();
    return std::exchange(connected_, {});
  }

 private:
  void keep(int rank, int channel, int plane, AsyncStream& stream) {
    Connection& place = connected_[static_cast<size_t>(rank)][static_cast<size_t>(channel)];
    if (place.fd >= 0 || over_) return;
    std::tie(place.fd, place.stream) = stream.release();
    place.plane = plane;
    --missing_;
  }

  // The plane on which a caller came: not the planned one if that led nowhere. Shaped planes have no interfaces of their own.
  int plane_at(const AsyncStream& caller, int rank, int channel) const {
    const std::vector<NetEndpoint>& more = setup_.addresses[static_cast<size_t>(setup_.rank)].more_interfaces;
    const int planned = plan_.plane(rank, channel);
    if (near(rank) || more.empty()) return planned;
    asio::error_code ignored;
    const std::string here = caller.socket().local_endpoint(ignored).address().to_string();
    for (size_t i = 0; i < more.size(); ++i)
      if (more[i].host == here) return static_cast<int>(i) + 1;
    return planned <= static_cast<int>(more.size()) ? 0 : planned;
  }

  bool near(int rank) const {
    return setup_.addresses[static_cast<size_t>(rank)].machine == setup_.addresses[static_cast<size_t>(setup_.rank)].machine;
  }
  std::pair<std::string, uint16_t> endpoint_of(int rank) const {
    const RankAddress& address = setup_.addresses[static_cast<size_t>(rank)];
    return near(rank) ? std::pair(std::string("127.0.0.1"), address.port) : std::pair(address.host, address.outside_port);
  }

  std::pair<std::string, uint16_t> endpoint_of(int rank, int plane) const {
    const NetEndpoint there = endpoint_on(setup_.addresses[static_cast<size_t>(rank)], plane);
    return near(rank) ? endpoint_of(rank) : std::pair(there.host, there.port);
  }

  // What came of one call.
  struct Outcome {
    bool connected = false, final = false;  // final: another call would end the same way
    std::string why = {};
  };

  asio::awaitable<Outcome> call_once(int rank, int channel, int plane) {
    const auto [host, port] = endpoint_of(rank, plane);
    const RankAddress& own = setup_.addresses[static_cast<size_t>(setup_.rank)];
    const bool named = !near(rank) && plane > 0 && plane <= static_cast<int>(own.more_interfaces.size());
    const auto stream = std::make_shared<AsyncStream>(io_);
    const auto limit = std::make_shared<asio::steady_timer>(io_, options_.handshake_deadline);
    limit->async_wait([stream](asio::error_code error) {
      if (!error) stream->close();
    });
    Outcome outcome;
    try {
      if (named) stream->bind_to(own.more_interfaces[static_cast<size_t>(plane) - 1].host);
      co_await stream->connect(host, port);
      co_await stream->begin(near(rank) ? nullptr : &*tls_, Tls::Side::client);
      co_await identify_to(*stream, setup_, rank, channel, plan_.channels(rank));
      keep(rank, channel, plane, *stream);
      outcome.connected = true;
    } catch (const asio::system_error& error) {
      outcome = {.final = error.code() == asio::error::connection_refused, .why = error.code().message()};
    } catch (const std::exception& error) {
      outcome = {.final = std::string_view(error.what()) != kConnectionClosed, .why = error.what()};
    }
    if (!outcome.connected && limit->expiry() <= asio::steady_timer::clock_type::now())
      outcome = {.why = fmt::format("no answer within {:.0f} s", base::seconds(options_.handshake_deadline))};
    limit->cancel();
    co_return outcome;
  }

  // A channel whose interface leads nowhere is made on the first one.
  asio::awaitable<void> call(int rank, int channel) {
    CallAttempts& attempts = attempts_.try_emplace({rank, channel}, seed(), kCallAgainAfter, kCallAgainMost).first->second;
    int plane = plan_.plane(rank, channel);
    while (!over_) {
      const Outcome outcome = co_await call_once(rank, channel, plane);
      if (outcome.connected || over_) co_return;
      if (endpoint_of(rank, plane) != endpoint_of(rank, 0)) {
        plane = 0;
        continue;
      }
      asio::steady_timer pause(io_, attempts.failed(outcome.why));
      if (outcome.final) co_return lose(rank, fmt::format("no connection at {}: {}", where(rank), outcome.why));
      asio::error_code ignored;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  // Asks the listeners of ranks that should call, in turn, whether they are still there.
  asio::awaitable<void> probe_missing() {
    struct Probed {
      bool seen = false;
      int refused = 0;  // in a row
    };
    std::map<int, Probed> probed;
    asio::steady_timer pause(io_);
    asio::error_code ignored;
    for (int rank = next_missing(setup_.rank); rank >= 0 && !over_; rank = next_missing(rank)) {
      Probed& one = probed[rank];
      const bool refused = co_await is_refused(rank);
      one = {.seen = one.seen || !refused, .refused = refused ? one.refused + 1 : 0};
      if (over_) co_return;
      if (is_missing(rank) && one.refused >= (one.seen ? kRefusedProbes : kRefusedProbesUnseen))
        co_return lose(rank, fmt::format("its process has ended before it connected: nobody listens at {}", where(rank)));
      pause.expires_after(kProbeEvery);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<bool> is_refused(int rank) {
    const auto [host, port] = endpoint_of(rank);
    const auto stream = std::make_shared<AsyncStream>(io_);
    const auto limit = std::make_shared<asio::steady_timer>(io_, options_.handshake_deadline);
    limit->async_wait([stream](asio::error_code error) {
      if (!error) stream->close();
    });
    bool refused = false;
    try {
      co_await stream->connect(host, port);
    } catch (const asio::system_error& error) {
      refused = error.code() == asio::error::connection_refused;
    }
    limit->cancel();
    co_return refused;
  }

  bool is_incomplete(int rank) const {
    const auto& channels = connected_[static_cast<size_t>(rank)];
    return std::any_of(channels.begin(), channels.end(), [](const Connection& one) { return one.fd < 0; });
  }
  bool is_missing(int rank) const { return rank > setup_.rank && is_incomplete(rank); }
  int next_missing(int after) const {  // -1: all have called
    for (int i = 1; i <= setup_.size; ++i)
      if (const int rank = (after + i) % setup_.size; is_missing(rank)) return rank;
    return -1;
  }

  std::string where(int rank) const {
    const auto [host, port] = endpoint_of(rank);
    return fmt::format("{}:{}", host, port);
  }
  static uint64_t seed() {
    uint64_t number = 0;
    std::memcpy(&number, fresh_key().data(), sizeof number);
    return number;
  }

  void lose(int rank, const std::string& why) {
    failure_ = Error(Error::Kind::lost_peer, fmt::format("rank {} lost: {}", rank, why));
    failure_->about_peer(rank);
  }

  Error absent() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < setup_.size; ++rank) {
      if (rank != setup_.rank && is_incomplete(rank)) ranks.push_back(rank);
    }
    const auto tried = attempts_.find({ranks.front(), 0});
    const std::string calls = tried == attempts_.end() ? "" : tried->second.summary();
    Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: not there {:.1f} s after the start{}", fmt::join(ranks, ", "),
                                                    base::seconds(options_.connect_deadline), calls.empty() ? "" : " (" + calls + ")"));
    error.about_peer(ranks.front());
    return error;
  }

  asio::io_context io_;
  const NetSetup& setup_;
  const NetOptions& options_;
  const ChannelPlan plan_;
  std::optional<Tls> tls_;
  std::vector<std::vector<Connection>> connected_;        // by rank, by channel
  std::map<std::pair<int, int>, CallAttempts> attempts_;  // by rank and channel
  int missing_ = 0;
  bool over_ = false;
  std::optional<Error> failure_;
};

}  // namespace

void announce_death(const NetSetup& ended, std::chrono::nanoseconds limit) {
  asio::io_context io(1);
  const Tls tls(ended.key);
  const auto tell = [&](int rank) -> asio::awaitable<void> {
    const RankAddress& address = ended.addresses[static_cast<size_t>(rank)];
    AsyncStream stream(io);
    try {
      co_await stream.connect(address.host, address.outside_port);
      co_await stream.begin(&tls, Tls::Side::client);
      co_await identify_to(stream, ended, rank, 0, 1, /*ended=*/true);
    } catch (const std::exception&) {  // it does not wait any more
    }
  };
  const std::vector<int> neighbours = ended.neighbours();
  for (int rank = 0; rank < ended.rank; ++rank)  // these wait for a call; those above call themselves
    if (std::find(neighbours.begin(), neighbours.end(), rank) == neighbours.end()) asio::co_spawn(io, tell(rank), asio::detached);
  io.run_for(limit);
}

std::vector<std::vector<Connection>> connect_peers(const NetSetup& setup, const NetOptions& options) {
  return PeerConnector(setup, options).run();
}

}  // namespace cairn::comm
