#pragma once
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "comm/net/async_stream.h"

namespace cairn::comm {

// Accepts connections at a listening socket and authenticates each caller. Until a caller is authenticated it may cost little: `timeout`
// of time, a few kilobytes, and one of 64 places; when all are taken, the oldest caller is dropped. So callers without the key cannot keep
// out those that have it.
class UnauthenticatedPeers {
 public:
  // Runs the handshake with a caller and keeps its stream if it is welcome; throws if it is not.
  using Authenticate = std::function<asio::awaitable<void>(AsyncStream& caller)>;

  // Called with the address of a caller that failed to authenticate.
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
  };
  asio::awaitable<void> accept_all();
  asio::awaitable<void> authenticate_one(std::shared_ptr<Peer> peer);

  asio::io_context& io_;
  asio::ip::tcp::acceptor listener_;
  const Tls* tls_;
  std::chrono::nanoseconds timeout_;
  Authenticate authenticate_;
  Refused refused_;
  std::list<std::shared_ptr<Peer>> peers_;  // oldest first
  bool closed_ = false;
};

}  // namespace cairn::comm
