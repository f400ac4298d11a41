// Limits what callers can cost before they are authenticated.
//
//   places    256 in all, 64 for each address. Each caller has a time limit.
//   eviction  A newcomer that finds no place takes one from a caller that has come least far: silent, then those that sent something, then
//             those whose TLS hello was accepted (with a pre-shared key the hello proves the key). Among these it is one of the address
//             that has most places, the oldest of them. A caller that has completed TLS is never dropped for a newcomer.
//   rate      At most 8 connections are accepted in a row, then other work of this thread gets a millisecond. The rest waits in the
//             kernel's queue, where a caller's hello waits with it.
//
// So a flood of connections, also from the address of a caller with the key, evicts its own. The caller sends its hello right after it has
// connected and leaves the lowest stage at once; where it is dropped in that instant, it calls again.
#include "comm/net/unauthenticated_peers.h"

#include <algorithm>
#include <map>
#include <utility>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

namespace cairn::comm {

using asio::ip::tcp;

namespace {

constexpr size_t kReportedMax = 32;  // addresses
constexpr int kAcceptAtOnce = 8;
constexpr auto kAcceptPause = std::chrono::milliseconds(1);    // after so many
constexpr auto kNoFilesPause = std::chrono::milliseconds(50);  // when the process has no file descriptor left

// Who shares places: one address, or in IPv6 one network of 64 bits, which a single machine may own.
asio::ip::address sharing(const asio::ip::address& address) {
  if (!address.is_v6()) return address;
  asio::ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes);
}

}  // namespace

UnauthenticatedPeers::UnauthenticatedPeers(asio::io_context& io, int listener_fd, const Tls* tls, std::chrono::nanoseconds timeout,
                                           Authenticate authenticate, Refused refused)
    : io_(io),
      listener_(io, protocol_of(listener_fd), listener_fd),
      tls_(tls),
      timeout_(timeout),
      authenticate_(std::move(authenticate)),
      refused_(std::move(refused)) {
  listener_.non_blocking(true);
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
  asio::steady_timer pause(io_);
  while (!closed_) {
    asio::error_code error;
    co_await listener_.async_wait(tcp::acceptor::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (closed_ || error) co_return;
    const int accepted = accept_some();
    if (accepted >= 0 && accepted < kAcceptAtOnce) continue;
    pause.expires_after(accepted < 0 ? std::chrono::nanoseconds(kNoFilesPause) : std::chrono::nanoseconds(kAcceptPause));
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

int UnauthenticatedPeers::accept_some() {
  for (int count = 0; count < kAcceptAtOnce; ++count) {
    asio::error_code error;
    auto peer = std::make_shared<Peer>(io_);
    tcp::endpoint caller;
    listener_.accept(peer->stream.socket(), caller, error);
    if (error == asio::error::would_block || error == asio::error::try_again) return count;
    if (error == asio::error::connection_aborted) continue;  // the caller has gone again
    if (error) return -1;
    peer->address = sharing(caller.address());
    make_room(peer->address);
    peers_.push_back(peer);
    asio::co_spawn(io_, authenticate_one(std::move(peer)), asio::detached);
  }
  return kAcceptAtOnce;
}

// Frees a place for a caller of this address, if its address or all of them together have no more.
void UnauthenticatedPeers::make_room(const asio::ip::address& newcomer) {
  std::map<asio::ip::address, size_t> counts;
  for (const auto& peer : peers_) ++counts[peer->address];
  const bool own_share_taken = counts[newcomer] >= kAddressPeersMax;
  if (!own_share_taken && peers_.size() < kPeersMax) return;
  auto chosen = peers_.end();
  const auto rank = [&](const auto& peer) { return std::pair(-static_cast<int>(peer->stream.stage()), counts[peer->address]); };
  for (auto one = peers_.begin(); one != peers_.end(); ++one) {  // the oldest first: a later one must be better to be chosen
    if (own_share_taken && (*one)->address != newcomer) continue;
    if (chosen == peers_.end() || rank(*one) > rank(*chosen)) chosen = one;
  }
  if ((*chosen)->stream.stage() != AsyncStream::Stage::authenticated) drop(chosen);
}

void UnauthenticatedPeers::drop(Peers::iterator peer) {
  (*peer)->timer.cancel();
  (*peer)->stream.close();
  peers_.erase(peer);
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
    const bool given_up = !peer->stream.socket().is_open() || std::string_view(error.what()) == kConnectionClosed;
    if (!began && !given_up && refused_ && reported_.size() < kReportedMax && reported_.insert(address).second) refused_(address);
  }
  peer->timer.cancel();
  peers_.remove(peer);
}

}  // namespace cairn::comm
