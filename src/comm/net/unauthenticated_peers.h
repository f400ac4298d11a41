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

// Takes the calls at a listening socket and lets each caller show who it is. Until then it is a stranger: it has a few seconds and a few
// kilobytes, there are only so many at a time, and if more come, the one that has been silent longest goes. So nobody who knows the key
// waits for those who do not.
class UnauthenticatedPeers {
 public:
  // Talks to a caller and keeps it if it is welcome; throws where it is not.
  using Authenticate = std::function<asio::awaitable<void>(AsyncStream& caller)>;

  // Told of an address from which somebody came who could not show that it belongs here.
  using Refused = std::function<void(const std::string& address)>;

  UnauthenticatedPeers(asio::io_context& io, int listener_fd, const Tls* tls, std::chrono::nanoseconds patience, Authenticate authenticate,
                       Refused refused = {});
  UnauthenticatedPeers(const UnauthenticatedPeers&) = delete;
  UnauthenticatedPeers& operator=(const UnauthenticatedPeers&) = delete;

  void close();  // no more calls; who has not been recognised by now is sent away

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
  std::chrono::nanoseconds patience_;
  Authenticate authenticate_;
  Refused refused_;
  std::list<std::shared_ptr<Peer>> peers_;  // the oldest first
  bool closed_ = false;
};

}  // namespace cairn::comm
