// Reliable messages between sites that start, stop and restart on their own.
//
// Each pair of sites has at most one TLS connection; the site with the higher number calls the other one. A message gets the next number
// of its pair, and its sender keeps it until it is acknowledged:
//
//   sender:    keep (n, body); write it; drop every kept m < received
//   receiver:  take n only where n = received, then received += 1; every header it writes carries `received`
//
// When a connection breaks, the two sides introduce themselves again and each says its `received`. The sender resumes writing there, so
// no message is lost and none is delivered twice. A site that restarts has a new incarnation with a higher number. All state of the pair
// then begins anew, and messages to an older incarnation are dropped.
//
// Numbers of incarnations: a start takes the time in microseconds. That alone would shut out a site whose clock went back, since the others
// remember a higher number. So each side of an introduction says the lowest number that it accepts of the other, and a site that has not
// been connected to anyone yet takes one above it. One that was connected, and was given up, keeps its number and stays refused.
//
// Failure detection: each side writes a heartbeat every 0.5 s. A connection on which no byte arrives for 5 s is closed. A long message on a
// slow link arrives byte by byte and keeps its connection. A site without a connection for `lost_after` is lost, and so is its incarnation.
#include "comm/bridge/bridge.h"

#include <algorithm>
#include <utility>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "comm/bridge/impl.h"
#include "comm/net/listen.h"

namespace cairn::comm {

namespace {

using base::Json;

constexpr auto kWatchEvery = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::seconds(10);  // for all sent messages to be acknowledged when this site ends

// Microseconds since 1970: higher after each start, also after a reboot, unless the clock goes back (see above).
uint64_t new_incarnation() { return static_cast<uint64_t>(base::wall_time() * 1e6); }

}  // namespace

Bridge::Impl::Impl(BridgeOptions options)
    : options_(std::move(options)),
      tls_(derive(options_.key, "bridge")),
      incarnation_(options_.incarnation != 0 ? options_.incarnation : new_incarnation()),
      guard_(io_.get_executor()),
      peers_(static_cast<size_t>(options_.sites)) {
  CAIRN_CHECK(options_.site >= 0 && options_.site < options_.sites, "site {} of {}", options_.site, options_.sites);
  if (options_.links) {
    check(*options_.links, options_.sites);
    shaper_.emplace(*options_.links, options_.sites, 1);
  }
  const Listener listener = listen_at(options_.address, options_.port);
  port_ = listener.port;
  incarnations_.resize(peers_.size());
  for (int other = 0; other < options_.sites; ++other) {
    Peer& peer = peers_[static_cast<size_t>(other)];
    peer.site = other;
    peer.wake = std::make_unique<asio::steady_timer>(io_);
    if (other < options_.site) asio::co_spawn(io_, call(peer), asio::detached);
  }
  unauthenticated_ = std::make_unique<UnauthenticatedPeers>(
      io_, listener.fd, &tls_, bridge::kIntroductionTimeout, [this](AsyncStream& caller) { return welcome(caller); },
      [this](const std::string& from) {
        if (refused_.insert(from).second) tell(fmt::format("a caller at {} was refused: it does not have this run's key", from));
      });
  for (const RendezvousEndpoint& endpoint : options_.endpoints) asio::co_spawn(io_, visit(endpoint), asio::detached);
  asio::co_spawn(io_, watch(), asio::detached);
  thread_ = std::thread([this] { io_.run(); });
}

Bridge::Impl::~Impl() {
  asio::post(io_, [this] {
    leaving_ = true;
    for (Peer& peer : peers_) peer.wake->cancel();
  });
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kFarewell, [this] { return all_said_; });
  }
  asio::post(io_, [this] {
    ended_ = true;
    unauthenticated_->close();
    for (Peer& peer : peers_) hang_up(peer);
    guard_.reset();
    io_.stop();
  });
  thread_.join();
}

uint64_t Bridge::Impl::incarnation(int site) const {
  if (site == options_.site) return incarnation_;
  const std::scoped_lock lock(mutex_);
  return incarnations_[static_cast<size_t>(site)];
}

std::string Bridge::Impl::refusal() const {
  const std::scoped_lock lock(mutex_);
  return refusal_;
}

void Bridge::Impl::send(int to, uint64_t incarnation, std::vector<std::byte> body) {
  asio::post(io_, [this, to, incarnation, body = std::make_shared<const std::vector<std::byte>>(std::move(body))] {
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.incarnation != incarnation || incarnation == 0) return;
    Nanoseconds at = clock_.now();
    if (shaper_) at = shaper_->send(options_.site, to, static_cast<int64_t>(body->size()), at).arrives;
    peer.outgoing.push_back({peer.sent++, at, body});
    peer.wake->cancel();
  });
}

std::optional<Bridge::Message> Bridge::Impl::next() {
  const std::scoped_lock lock(mutex_);
  seen_ = changes_;
  if (inbox_.empty()) return std::nullopt;
  Message message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void Bridge::Impl::wait(Nanoseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [this] { return !inbox_.empty() || changes_ != seen_; });
}

void Bridge::Impl::tell(const std::string& what) const {
  if (options_.tell) options_.tell(what);
}

void Bridge::Impl::changed() {
  const std::scoped_lock lock(mutex_);
  ++changes_;
  changed_.notify_all();
}

// Both sides have introduced themselves: this stream is the connection from now on. `said` is the other side's introduction.
void Bridge::Impl::connect(AsyncStream& stream, const Json& said) {
  const int site = said.at("site");
  Peer& peer = peers_[static_cast<size_t>(site)];
  const auto incarnation = said.at("life").get<uint64_t>();
  hang_up(peer);
  if (peer.incarnation != incarnation) {
    peer.outgoing.clear();
    peer.sent = peer.received = 0;
    peer.incarnation = incarnation;
    tell(fmt::format("island {} is here", site));
  }
  const uint64_t received = said.at("to_life").get<uint64_t>() == incarnation_ ? said.at("received").get<uint64_t>() : 0;
  acknowledge(peer, received);
  peer.written = received;
  const auto connection = std::make_shared<AsyncStream>(std::move(stream));
  peer.stream = connection;
  connected_before_ = true;
  peer.heard = clock_.now();
  peer.heartbeat_due = peer.addresses_due = true;
  peer.bye_sent = false;
  publish_incarnation(peer);
  asio::co_spawn(io_, read_all(peer, connection), asio::detached);  // may hang up at once, if the other side did
  asio::co_spawn(io_, write_all(peer, connection), asio::detached);
}

void Bridge::Impl::publish_incarnation(const Peer& peer) {
  {
    const std::scoped_lock lock(mutex_);
    incarnations_[static_cast<size_t>(peer.site)] = peer.incarnation;
  }
  changed();
}

void Bridge::Impl::acknowledge(Peer& peer, uint64_t received) {
  while (!peer.outgoing.empty() && peer.outgoing.front().number < received) peer.outgoing.pop_front();
}

void Bridge::Impl::hang_up(Peer& peer) {
  if (!peer.stream) return;
  peer.stream->close();
  peer.stream.reset();
  peer.away = clock_.now();
  peer.wake->cancel();
}

// This incarnation of the site is over.
void Bridge::Impl::lose(Peer& peer, const std::string& why) {
  hang_up(peer);
  if (peer.incarnation == 0) return;
  tell(fmt::format("island {} {}", peer.site, why));
  peer.ended = peer.incarnation;
  peer.incarnation = 0;
  peer.outgoing.clear();
  publish_incarnation(peer);
}

asio::awaitable<void> Bridge::Impl::pause(Nanoseconds time) {
  asio::steady_timer timer(io_, time);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Closes silent connections, gives up sites that stay away, and, while this site ends, notices that everything is sent.
asio::awaitable<void> Bridge::Impl::watch() {
  while (!ended_) {
    const Nanoseconds now = clock_.now();
    bool all_said = leaving_;
    for (Peer& peer : peers_) {
      if (peer.stream && now - peer.heard > options_.silence_max) hang_up(peer);
      if (peer.incarnation != 0 && !peer.stream && now - peer.away > options_.lost_after)
        lose(peer, fmt::format("is lost: it could not be reached for {:.0f} s", base::seconds(options_.lost_after)));
      all_said = all_said && (peer.incarnation == 0 || peer.bye_sent);
    }
    if (all_said && !std::exchange(farewell_done_, true)) {
      const std::scoped_lock lock(mutex_);
      all_said_ = true;
      changed_.notify_all();
    }
    co_await pause(leaving_ ? Nanoseconds(std::chrono::milliseconds(5)) : Nanoseconds(kWatchEvery));
  }
}

Bridge::Bridge(BridgeOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Bridge::~Bridge() = default;
int Bridge::site() const { return impl_->site(); }
int Bridge::sites() const { return impl_->sites(); }
uint16_t Bridge::port() const { return impl_->port(); }
uint64_t Bridge::incarnation(int site) const { return impl_->incarnation(site); }
std::string Bridge::refusal() const { return impl_->refusal(); }
void Bridge::send(int to, uint64_t incarnation, std::vector<std::byte> body) { impl_->send(to, incarnation, std::move(body)); }
std::optional<Bridge::Message> Bridge::next() { return impl_->next(); }
void Bridge::wait(std::chrono::nanoseconds most) { impl_->wait(most); }

}  // namespace cairn::comm
