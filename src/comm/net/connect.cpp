// Connects every pair of ranks: rank r calls all ranks below it and accepts calls of those above. So each pair has one connection, and no
// rank waits for a particular order. Each connection is authenticated (handshake.h); between machines TLS authenticates it before that. A
// call to a rank that hangs up is repeated, since its listener may have been full of unauthenticated callers.
#include <optional>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/handshake.h"
#include "comm/net/peer.h"
#include "comm/net/unauthenticated_peers.h"

namespace cairn::comm {
namespace {

constexpr int kCalls = 20;  // attempts at a rank that hung up: it may have had too many callers
constexpr auto kCallAgainAfter = std::chrono::milliseconds(100);

// The calling side of the handshake (handshake.h). Throws if the other side is not rank `to` of this run.
asio::awaitable<void> identify_to(AsyncStream& stream, const NetSetup& setup, int to) {
  const Hello hello = make_hello(setup, to);
  co_await stream.write_value(hello);
  const auto challenge = co_await stream.read_value<Challenge>();
  const Bytes32 proof = make_proof(setup, hello, challenge);
  co_await stream.write_value(proof);
}

// The called side. Returns the caller's rank; throws if it is not a rank of this run that should call.
asio::awaitable<int> identify_caller(AsyncStream& stream, const NetSetup& setup) {
  const auto hello = co_await stream.read_value<Hello>();
  const Challenge challenge = make_challenge(setup, hello);
  co_await stream.write_value(challenge);
  const auto proof = co_await stream.read_value<Bytes32>();
  check_proof(setup, hello, challenge, proof);
  co_return hello.from;
}

class PeerConnector {
 public:
  PeerConnector(const NetSetup& setup, const NetOptions& options) : io_(1), setup_(setup), options_(options) {
    connected_.resize(static_cast<size_t>(setup.size));
    missing_ = setup.size - 1;
    if (setup.outside_fd >= 0) tls_.emplace(setup.key);
  }

  ~PeerConnector() {
    for (const Connection& one : connected_) {
      if (one.fd >= 0) ::close(one.fd);
    }
  }

  std::vector<Connection> run() {
    const auto welcome = [this](AsyncStream& caller) -> asio::awaitable<void> { keep(co_await identify_caller(caller, setup_), caller); };
    std::optional<UnauthenticatedPeers> inside, outside;
    if (setup_.listener_fd >= 0) inside.emplace(io_, setup_.listener_fd, nullptr, options_.handshake_deadline, welcome);
    if (tls_) outside.emplace(io_, setup_.outside_fd, &*tls_, options_.handshake_deadline, welcome);
    for (int rank = 0; rank < setup_.rank; ++rank) asio::co_spawn(io_, call(rank), asio::detached);
    const base::RealClock clock;
    while (missing_ > 0 && !failure_ && clock.now() < options_.connect_deadline) io_.run_one_for(options_.connect_deadline - clock.now());
    over_ = true;
    if (inside) inside->close();
    if (outside) outside->close();
    io_.restart();
    io_.poll();  // lets interrupted handshakes end
    if (failure_) throw Error(*failure_);
    if (missing_ > 0) throw absent();
    return std::exchange(connected_, {});
  }

 private:
  void keep(int rank, AsyncStream& stream) {
    Connection& place = connected_[static_cast<size_t>(rank)];
    if (place.fd >= 0 || over_) return;
    std::tie(place.fd, place.stream) = stream.release();
    --missing_;
  }

  asio::awaitable<void> call(int rank) {
    const RankAddress& rank_address = setup_.addresses[static_cast<size_t>(rank)];
    const bool near = rank_address.machine == setup_.addresses[static_cast<size_t>(setup_.rank)].machine;
    const std::string host = near ? "127.0.0.1" : rank_address.host;
    const uint16_t port = near ? rank_address.port : rank_address.outside_port;
    std::string why;
    for (int attempt = 0; attempt < kCalls && !over_; ++attempt) {
      if (attempt > 0) {
        asio::steady_timer pause(io_, kCallAgainAfter);
        co_await pause.async_wait(asio::use_awaitable);
      }
      try {
        AsyncStream stream(io_);
        co_await stream.connect(host, port);
        co_await stream.begin(near ? nullptr : &*tls_, Tls::Side::client);
        co_await identify_to(stream, setup_, rank);
        keep(rank, stream);
        co_return;
      } catch (const std::exception& error) {
        why = error.what();
        if (why != kConnectionClosed) break;
      }
    }
    if (over_) co_return;
    failure_ = Error(Error::Kind::lost_peer, fmt::format("rank {} lost: no connection at {}:{}: {}", rank, host, port, why));
    failure_->about_peer(rank);
  }

  Error absent() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < setup_.size; ++rank) {
      if (rank != setup_.rank && connected_[static_cast<size_t>(rank)].fd < 0) ranks.push_back(rank);
    }
    Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: not there {:.1f} s after the start", fmt::join(ranks, ", "),
                                                    base::seconds(options_.connect_deadline)));
    error.about_peer(ranks.front());
    return error;
  }

  asio::io_context io_;
  const NetSetup& setup_;
  const NetOptions& options_;
  std::optional<Tls> tls_;
  std::vector<Connection> connected_;
  int missing_ = 0;
  bool over_ = false;
  std::optional<Error> failure_;
};

}  // namespace

std::vector<Connection> connect_peers(const NetSetup& setup, const NetOptions& options) { return PeerConnector(setup, options).run(); }

}  // namespace cairn::comm
