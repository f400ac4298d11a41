#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>

#include <asio/awaitable.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "comm/net/async_stream.h"

namespace cairn::comm {

// Accepts connections at a listening socket and authenticates each caller. Until a caller is authenticated it may cost little: `timeout`
// of time, a few kilobytes, and one of the places, of which each address has a share. Callers that have come least far in the handshake
// are dropped first, so callers without the key cannot keep out those that have it, also from the same address.
class UnauthenticatedPeers {
 public:
  static constexpr size_t kPeersMax = 256;        // places in all
  static constexpr size_t kAddressPeersMax = 64;  // of one address (of one network of 64 bits in IPv6)

  // Runs the handshake with a caller and keeps its stream if it is welcome; throws if it is not.
  using Authenticate = std::function<asio::awaitable<void>(AsyncStream& caller)>;

  // Called once for each address of which a caller failed to authenticate, for a few addresses.
  using Refused = std::function<void(const std::string& address)>;

  UnauthenticatedPeers(asio::io_context& io, int listener_fd, const Tls* tls, std::chrono::nanoseconds timeout, Authenticate authenticate,
                       Refused refused = {});
  UnauthenticatedPeers(const UnauthenticatedPeers&) = delete;
  UnauthenticatedPeers& operator=(const UnauthenticatedPeers&) = delete;

  void close();  // accepts no more callers and drops those that are not authenticated

 private:
  struct Peer {
    explicit Peer(asio::io_context& io) : stream(io), timer(io) {}
    AsyncStream stream;
    asio::steady_timer timer;
    asio::ip::address address;
  };
  using Peers = std::list<std::shared_ptr<Peer>>;

  asio::awaitable<void> accept_all();
  int accept_some();  // returns how many; -1: the process has no file descriptor left
  void make_room(const asio::ip::address& newcomer);
  void drop(Peers::iterator peer);
  asio::awaitable<void> authenticate_one(std::shared_ptr<Peer> peer);

  asio::io_context& io_;
  asio::ip::tcp::acceptor listener_;
  const Tls* tls_;
  std::chrono::nanoseconds timeout_;
  Authenticate authenticate_;
  Refused refused_;
  Peers peers_;  // oldest first
  std::set<std::string> reported_;
  bool closed_ = false;
};

}  // namespace cairn::comm
