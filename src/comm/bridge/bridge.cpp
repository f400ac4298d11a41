// Reliable messages between sites that start, stop and restart on their own.
//
// SiteChannels (site_channels.h) decides what travels: numbers, acknowledgements, incarnations, reachability, relays. It has no input or
// output. The bridge is what surrounds it, on one thread: connections, introductions, the clock, and the mailbox for other threads.
//
// Each pair of sites has at most one TLS connection; the site with the higher number calls the other one, again and again where it does not
// answer. A connection on which no byte arrives for 5 s is closed. A long message on a slow link arrives byte by byte and keeps its
// connection. A site that is not heard of for `lost_after` is unreachable, but not gone: its pair goes on when it is heard again.
//
// Numbers of incarnations: each start takes a number from a counter, which is a file where the site has a folder. The others remember the
// highest number they have met. A site whose folder is new may be below it, and a copied folder may give a number twice. So each side of an
// introduction says the lowest number that it accepts of the other, and the name of its process. A site that is below takes the next
// number above from its counter: all its pairs begin anew.
//
// A coroutine that has waited knows nothing any more: its connection may be closed, the site may have taken another number or may be
// leaving, and another connection may have come first. Each checks all of this again before it makes a connection.
#include "comm/bridge/bridge.h"

#include <algorithm>
#include <exception>
#include <future>
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
#include "base/files.h"
#include "comm/bridge/impl.h"
#include "comm/net/listen.h"
#include "comm/net/sent_bytes.h"

namespace cairn::comm {

namespace {

using base::Json;

constexpr auto kWatchEvery = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::seconds(10);  // for all sent messages to be acknowledged when this site ends

constexpr auto kGoodbyeRead = std::chrono::seconds(1);  // for a goodbye to be read
constexpr int kRelaysPerSilence = 5;                    // a path through a relay is taken after this part of silence_max

SiteChannels::Options channel_options(const BridgeOptions& options, const NextIncarnation& next_incarnation) {
  CAIRN_CHECK(options.site >= 0 && options.site < options.sites, "site {} of {}", options.site, options.sites);
  return {.site = options.site,
          .sites = options.sites,
          .incarnation = next_incarnation(1),
          .lost_after = options.lost_after,
          .silence_max = options.silence_max,
          .relay_after = options.silence_max / kRelaysPerSilence};
}

}  // namespace

Bridge::Impl::Impl(BridgeOptions options)
    : options_(std::move(options)),
      tls_(derive(options_.key, "bridge")),
      process_(base::random_name()),
      next_incarnation_(options_.incarnations ? options_.incarnations : incarnations_in_memory()),
      channels_(channel_options(options_, next_incarnation_), clock_.now()),
      guard_(io_.get_executor()),
      peers_(static_cast<size_t>(options_.sites)) {
  if (options_.links) {
    check(*options_.links, options_.sites);
    shaper_.emplace(*options_.links, options_.sites, 1);
  }
  const Listener listener = listen_at(options_.address, options_.port);
  port_ = listener.port;
  incarnation_ = channels_.incarnation();
  shown_.resize(peers_.size());
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
    channels_.leave();
    wake_writers();
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
  const std::scoped_lock lock(mutex_);
  return site == options_.site ? incarnation_ : shown_[static_cast<size_t>(site)].incarnation;
}

bool Bridge::Impl::reachable(int site) const {
  const std::scoped_lock lock(mutex_);
  return site == options_.site || shown_[static_cast<size_t>(site)].reachable;
}

std::string Bridge::Impl::refusal() const {
  const std::scoped_lock lock(mutex_);
  return refusal_;
}

bool Bridge::Impl::send(int to, uint64_t incarnation, std::vector<std::byte> body) {
  {
    const std::scoped_lock lock(mutex_);
    const Shown& shown = shown_[static_cast<size_t>(to)];
    if (!shown.reachable || shown.incarnation != incarnation) return false;
  }
  asio::post(io_, [this, to, incarnation, body = std::make_shared<std::vector<std::byte>>(std::move(body))] {
    const Nanoseconds now = clock_.now();
    if (!channels_.reachable(to, now) || channels_.incarnation(to) != incarnation) return;
    const auto bytes = static_cast<int64_t>(body->size());
    channels_.send(to, incarnation, body, shaper_ ? shaper_->send(options_.site, to, bytes, now).arrives : now, now);
    wake_writers();
  });
  return true;
}

std::optional<Bridge::Message> Bridge::Impl::next() {
  const std::scoped_lock lock(mutex_);
  seen_ = changes_;
  if (inbox_.empty()) return std::nullopt;
  Message message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

std::vector<SiteChannels::Relayed> Bridge::Impl::take_relayed() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(relayed_, {});
}

void Bridge::Impl::renew() {
  std::promise<void> done;
  asio::post(io_, [this, &done] {
    try {
      begin_incarnation(channels_.incarnation() + 1);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
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
  if (!stream.is_open()) return;
  Peer& peer = peers_[said.at("site").get<size_t>()];
  hang_up(peer);
  if (!channels_.opened(peer.site, said.at("incarnation").get<uint64_t>(), clock_.now())) return;
  const auto connection = std::make_shared<AsyncStream>(std::move(stream));
  peer.stream = connection;
  peer.process = said.at("process").get<std::string>();
  peer.addresses_due = true;
  taken_since_.reset();
  publish();
  wake_writers();
  asio::co_spawn(io_, read_all(peer, connection), asio::detached);
  asio::co_spawn(io_, write_all(peer, connection), asio::detached);  // ends at once if the reader has hung up already
}

// Shows other threads what has changed: messages, who is here, what was relayed.
void Bridge::Impl::publish() {
  const Nanoseconds now = clock_.now();
  std::vector<SiteChannels::Message> came = channels_.take_messages();
  std::vector<SiteChannels::Relayed> relayed = channels_.take_relayed();
  bool news = !came.empty() || !relayed.empty();
  for (Peer& peer : peers_) {
    if (peer.site == options_.site) continue;
    const Shown shown{channels_.incarnation(peer.site), channels_.reachable(peer.site, now), channels_.first_hop(peer.site, now)};
    if (shown == peer.shown) continue;
    tell_change(peer.shown, shown, peer.site);
    peer.shown = shown;
    news = true;
  }
  if (!news) return;
  {
    const std::scoped_lock lock(mutex_);
    for (SiteChannels::Message& one : came) inbox_.push_back({one.from, one.incarnation, std::move(*one.body)});
    relayed_.insert(relayed_.end(), relayed.begin(), relayed.end());
    for (const Peer& peer : peers_) shown_[static_cast<size_t>(peer.site)] = peer.shown;
    ++changes_;
  }
  changed_.notify_all();
}

void Bridge::Impl::tell_change(const Shown& before, const Shown& now, int site) const {
  if (now.reachable && now.incarnation != before.incarnation) tell(fmt::format("island {} is here", site));
  if (now.reachable && !before.reachable && now.incarnation == before.incarnation) tell(fmt::format("island {} is reachable again", site));
  if (!now.reachable && before.reachable)
    tell(channels_.said_bye(site)
             ? fmt::format("island {} has ended its work", site)
             : fmt::format("island {} is unreachable: nothing was heard of it for {:.0f} s", site, base::seconds(options_.lost_after)));
  if (now.reachable && now.first_hop != before.first_hop && now.first_hop >= 0 && now.first_hop != site)
    tell(fmt::format("island {} is reached through island {}", site, now.first_hop));
}

void Bridge::Impl::wake_writers() {
  for (Peer& peer : peers_) peer.wake->cancel();
}

void Bridge::Impl::count_bytes(Peer& peer) {
  const int64_t sent = sent_bytes(peer.stream->socket().native_handle());
  socket_bytes_ += sent - std::exchange(peer.counted_bytes, sent);
}

void Bridge::Impl::hang_up(Peer& peer) {
  if (!peer.stream) return;
  if (peer.stream->is_open()) count_bytes(peer);
  peer.counted_bytes = 0;
  peer.stream->close();
  peer.stream.reset();
  channels_.closed(peer.site, clock_.now());
  wake_writers();
}

// This site goes on under a new number, at least `least`.
void Bridge::Impl::begin_incarnation(uint64_t least) {
  const uint64_t number = next_incarnation_(least);
  for (Peer& peer : peers_) hang_up(peer);
  channels_.renew(number, clock_.now());
  {
    const std::scoped_lock lock(mutex_);
    incarnation_ = number;
    inbox_.clear();
  }
  changed();
}

asio::awaitable<void> Bridge::Impl::pause(Nanoseconds time) {
  asio::steady_timer timer(io_, time);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Closes silent connections, notices who has become unreachable, and, while this site ends, that everything is sent.
asio::awaitable<void> Bridge::Impl::watch() {
  Nanoseconds before = clock_.now();
  while (!ended_) {
    const Nanoseconds now = clock_.now();
    // If this process stood still, what arrived meanwhile has not been read yet: the others are not the silent ones.
    const bool stood_still = now - std::exchange(before, now) > options_.silence_max / 2;
    if (!stood_still)
      for (const int site : channels_.silent(now)) hang_up(peers_[static_cast<size_t>(site)]);
    for (Peer& peer : peers_)
      if (is_cut(peer.site)) hang_up(peer);
    publish();
    // Who has read the goodbye closes the connection. A connection that is closed from here may lose it.
    const bool open = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.stream != nullptr; });
    if (!leaving_ || !channels_.has_left(now)) said_at_ = now;
    const bool all_said = leaving_ && said_at_ < now && (!open || now - said_at_ > kGoodbyeRead);
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
bool Bridge::reachable(int site) const { return impl_->reachable(site); }
int64_t Bridge::socket_bytes() const { return impl_->socket_bytes(); }
bool Bridge::send(int to, uint64_t incarnation, std::vector<std::byte> body) { return impl_->send(to, incarnation, std::move(body)); }
std::vector<SiteChannels::Relayed> Bridge::take_relayed() { return impl_->take_relayed(); }
void Bridge::renew() { impl_->renew(); }
std::optional<Bridge::Message> Bridge::next() { return impl_->next(); }
void Bridge::wait(std::chrono::nanoseconds most) { impl_->wait(most); }

}  // namespace cairn::comm
