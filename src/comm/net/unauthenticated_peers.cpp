// Limits what callers can cost before they are authenticated: at most 64 at a time, each with a time limit; when a new one comes, the
// oldest one is dropped. A caller with the key finishes its handshake within milliseconds, so it is rarely the oldest, and calls again if
// it was.
#include "comm/net/unauthenticated_peers.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

namespace cairn::comm {
namespace {

constexpr size_t kPeersMax = 64;
constexpr auto kNoFilesPause = std::chrono::milliseconds(50);  // when the process has no file descriptor left

}  // namespace

UnauthenticatedPeers::UnauthenticatedPeers(asio::io_context& io, int listener_fd, const Tls* tls, std::chrono::nanoseconds timeout,
                                           Authenticate authenticate, Refused refused)
    : io_(io),
      listener_(io, protocol_of(listener_fd), listener_fd),
      tls_(tls),
      timeout_(timeout),
      authenticate_(std::move(authenticate)),
      refused_(std::move(refused)) {
  asio::co_spawn(io_, accept_all(), asio::detached);
}

void UnauthenticatedPeers::close() {
  closed_ = true;
  asio::error_code ignored;
  listener_.close(ignored);
  for (const auto& peer : peers_) {
    peer->timer.cancel();
    peer->stream.close();
  }
}

asio::awaitable<void> UnauthenticatedPeers::accept_all() {
  while (!closed_) {
    asio::error_code error;
    auto peer = std::make_shared<Peer>(io_);
    co_await listener_.async_accept(peer->stream.socket(), asio::redirect_error(asio::use_awaitable, error));
    if (closed_ || error == asio::error::operation_aborted) co_return;
    if (error) {  // the caller has gone again, or no file descriptor is left
      peer->timer.expires_after(kNoFilesPause);
      co_await peer->timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if (peers_.size() >= kPeersMax) {
      peers_.front()->stream.close();
      peers_.pop_front();
    }
    peers_.push_back(peer);
    asio::co_spawn(io_, authenticate_one(std::move(peer)), asio::detached);
  }
}

asio::awaitable<void> UnauthenticatedPeers::authenticate_one(std::shared_ptr<Peer> peer) {
  peer->timer.expires_after(timeout_);
  peer->timer.async_wait([peer](asio::error_code error) {
    if (!error) peer->stream.close();
  });
  asio::error_code ignored;
  const std::string address = peer->stream.socket().remote_endpoint(ignored).address().to_string();
  bool began = false;
  try {
    co_await peer->stream.begin(tls_, Tls::Side::server);
    began = true;
    co_await authenticate_(peer->stream);
  } catch (const std::exception& error) {  // only this connection ends
    if (!began && refused_ && std::string_view(error.what()) != kConnectionClosed) refused_(address);
  }
  peer->timer.cancel();
  peers_.remove(peer);
}

}  // namespace cairn::comm
