#include "comm/bridge/bridge.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
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
#include "base/clock.h"
#include "base/json.h"
#include "base/version.h"
#include "comm/net/async_stream.h"
#include "comm/net/listen.h"
#include "comm/net/unauthenticated_peers.h"

namespace cairn::comm {
namespace {

using base::Json;
using Nanoseconds = std::chrono::nanoseconds;

constexpr uint32_t kMagic = 0x62726467;
constexpr uint32_t kTextBytesMax = 1 << 20;
constexpr int64_t kReadPiece = 256 << 10;                    // a long message is a sign of life at every piece
constexpr auto kIntroduction = std::chrono::seconds(5);      // for one who has not shown who it is
constexpr auto kBeatEvery = std::chrono::milliseconds(500);  // a sign of life
constexpr auto kSilenceMost = std::chrono::seconds(5);       // then the connection is taken for broken
constexpr auto kCallAgainAfter = std::chrono::milliseconds(200);
constexpr auto kCallOverAfter = std::chrono::milliseconds(1000);
constexpr auto kVisitAgainAfter = std::chrono::milliseconds(500);
constexpr auto kGlance = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::seconds(10);  // for all that was sent to be there, when this site ends

struct Head {
  enum class Kind : uint32_t { message = 1, beat = 2, book = 3, bye = 4 };
  uint32_t magic = kMagic;
  Kind kind = Kind::beat;
  uint64_t number = 0;    // of a message
  uint64_t received = 0;  // messages of the reader's that have come
  int64_t bytes = 0;
};
static_assert(sizeof(Head) == 32);

// Where a site can be called, in one of its lives: later ones have higher numbers.
struct SiteAddress {
  std::string host;
  uint16_t port = 0;
  uint64_t incarnation = 0;
};

std::string refusal_of(const std::string& why) { return base::compact(Json{{"refused", why}}); }

// Lines that the other has not, as people would list them.
std::string only_in(const std::string& text, const std::string& other) {
  const auto lines = [](const std::string& of) {
    std::vector<std::string> all;
    std::istringstream in(of);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  const std::vector<std::string> known = lines(other);
  std::string list;
  for (const std::string& line : lines(text))
    if (std::find(known.begin(), known.end(), line) == known.end()) list += (list.empty() ? "" : ", ") + line;
  return list.empty() ? "no more" : list;
}

// A later life has a higher number, also where a machine was started anew in between.
uint64_t new_incarnation() { return static_cast<uint64_t>(base::wall_time() * 1e6); }

}  // namespace

class Bridge::Impl {
 public:
  explicit Impl(BridgeOptions options)
      : options_(std::move(options)),
        tls_(derive(options_.key, "bridge")),
        incarnation_(new_incarnation()),
        guard_(io_.get_executor()),
        lines_(static_cast<size_t>(options_.sites)) {
    CAIRN_CHECK(options_.site >= 0 && options_.site < options_.sites, "site {} of {}", options_.site, options_.sites);
    if (options_.links) {
      check(*options_.links, options_.sites);
      shaper_.emplace(*options_.links, options_.sites, 1);
    }
    const Listener listener = listen_at(options_.address, options_.port);
    port_ = listener.port;
    incarnations_.resize(lines_.size());
    for (int other = 0; other < options_.sites; ++other) {
      Line& line = lines_[static_cast<size_t>(other)];
      line.site = other;
      line.wake = std::make_unique<asio::steady_timer>(io_);
      if (other < options_.site) asio::co_spawn(io_, call(line), asio::detached);
    }
    unauthenticated_ = std::make_unique<UnauthenticatedPeers>(
        io_, listener.fd, &tls_, kIntroduction, [this](AsyncStream& caller) { return welcome(caller); },
        [this](const std::string& from) {
          if (refused_.insert(from).second) tell(fmt::format("a caller at {} was refused: it does not have this run's key", from));
        });
    for (const RendezvousEndpoint& place : options_.endpoints) asio::co_spawn(io_, visit(place), asio::detached);
    asio::co_spawn(io_, watch(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Impl() {
    asio::post(io_, [this] {
      leaving_ = true;
      for (Line& line : lines_) line.wake->cancel();
    });
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kFarewell, [this] { return all_said_; });
    }
    asio::post(io_, [this] {
      ended_ = true;
      unauthenticated_->close();
      for (Line& line : lines_) hang_up(line);
      guard_.reset();
      io_.stop();
    });
    thread_.join();
  }

  int site() const { return options_.site; }
  int sites() const { return options_.sites; }
  uint16_t port() const { return port_; }
  uint64_t incarnation(int site) const {
    if (site == options_.site) return incarnation_;
    const std::scoped_lock lock(mutex_);
    return incarnations_[static_cast<size_t>(site)];
  }
  std::string refusal() const {
    const std::scoped_lock lock(mutex_);
    return refusal_;
  }

  void send(int to, uint64_t incarnation, std::vector<std::byte> body) {
    asio::post(io_, [this, to, incarnation, body = std::make_shared<const std::vector<std::byte>>(std::move(body))] {
      Line& line = lines_[static_cast<size_t>(to)];
      if (line.incarnation != incarnation || incarnation == 0) return;
      Nanoseconds at = clock_.now();
      if (shaper_) at = shaper_->send(options_.site, to, static_cast<int64_t>(body->size()), at).arrives;
      line.outgoing.push_back({line.sent++, at, body});
      line.wake->cancel();
    });
  }

  std::optional<Message> next() {
    const std::scoped_lock lock(mutex_);
    seen_ = changes_;
    if (inbox_.empty()) return std::nullopt;
    Message message = std::move(inbox_.front());
    inbox_.pop_front();
    return message;
  }

  void wait(Nanoseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [this] { return !inbox_.empty() || changes_ != seen_; });
  }

 private:
  struct Outgoing {
    uint64_t number = 0;
    Nanoseconds at{};  // when it may leave
    std::shared_ptr<const std::vector<std::byte>> body;
  };
  // All that there is with one other site. While it lives, connections may come and go.
  struct Line {
    int site = 0;
    uint64_t incarnation = 0;  // 0: it is not here
    uint64_t over = 0;         // the last of its lives that ended
    SiteAddress at;            // as far as is known
    std::shared_ptr<AsyncStream> stream;
    std::deque<Outgoing> outgoing;  // until it has come
    uint64_t sent = 0, received = 0;
    uint64_t written = 0;  // of this connection: the first that is not
    Nanoseconds heard{}, away{};
    bool beat_due = false, book_due = false, bye_sent = false;
    std::unique_ptr<asio::steady_timer> wake;  // of the writer
  };

  void tell(const std::string& what) const {
    if (options_.tell) options_.tell(what);
  }

  void changed() {
    const std::scoped_lock lock(mutex_);
    ++changes_;
    changed_.notify_all();
  }

  // ---- who is where ----

  Json book() const {
    Json all = Json::array();
    for (const Line& line : lines_)
      if (line.at.incarnation != 0)
        all.push_back({{"site", line.site}, {"host", line.at.host}, {"port", line.at.port}, {"life", line.at.incarnation}});
    return all;
  }
  void learn(int site, const SiteAddress& at) {
    if (site < 0 || site >= options_.sites || site == options_.site) return;
    Line& line = lines_[static_cast<size_t>(site)];
    if (at.incarnation <= line.at.incarnation || at.incarnation <= line.over) return;
    line.at = at;
    for (Line& other : lines_) {
      other.book_due = true;
      other.wake->cancel();
    }
  }
  void learn(const Json& entries) {
    for (const Json& one : entries)
      learn(one.at("site").get<int>(), {one.at("host").get<std::string>(), one.at("port").get<uint16_t>(), one.at("life").get<uint64_t>()});
  }

  std::string introduction(const Line* to, bool visit) const {
    const std::string host = !options_.known_as.empty() ? options_.known_as : options_.address;
    return base::compact(Json{{"version", base::version()},
                              {"config_fingerprint", options_.config_fingerprint},
                              {"site", options_.site},
                              {"sites", options_.sites},
                              {"life", incarnation_},
                              {"host", host == "0.0.0.0" || host == "::" ? "" : host},
                              {"port", port_},
                              {"visit", visit},
                              {"to_life", to ? to->incarnation : 0},
                              {"received", to ? to->received : 0},
                              {"book", book()}});
  }

  // Empty, or why this site cannot be one of ours.
  std::string check_introduction(const Json& said) const {
    try {
      if (said.contains("refused")) return said.at("refused").get<std::string>();
      const std::string version = said.at("version"), config_fingerprint = said.at("config_fingerprint");
      const int site = said.at("site"), sites = said.at("sites");
      if (version != base::version()) return fmt::format("one runs Cairn {}, the other {}", base::version(), version);
      if (sites != options_.sites) return fmt::format("one counts {} islands, the other {}", options_.sites, sites);
      if (site < 0 || site >= sites) return fmt::format("there is no island {} of {}", site, sites);
      if (config_fingerprint != options_.config_fingerprint)
        return fmt::format("they were started otherwise: {} here, {} there", only_in(options_.config_fingerprint, config_fingerprint),
                           only_in(config_fingerprint, options_.config_fingerprint));
      const auto incarnation = said.at("life").get<uint64_t>();
      if (site == options_.site)
        return incarnation == incarnation_ ? ""
                                           : fmt::format("there is an island {} already: give this one another number (--island)", site);
      const Line& line = lines_[static_cast<size_t>(site)];
      if (line.stream && line.incarnation != incarnation && clock_.now() - line.heard < kSilenceMost)
        return fmt::format("there is an island {} already: give this one another number (--island)", site);
      if (incarnation < line.incarnation || incarnation <= line.over) return "it was given up: start it again";
    } catch (const Json::exception&) {
      return "it does not speak this protocol";
    }
    return "";
  }

  // What both sides know of each other once each has introduced itself.
  void connect(AsyncStream& stream, const Json& said) {
    const int site = said.at("site");
    Line& line = lines_[static_cast<size_t>(site)];
    const auto incarnation = said.at("life").get<uint64_t>();
    hang_up(line);
    if (line.incarnation != incarnation) {
      line.outgoing.clear();
      line.sent = line.received = 0;
      line.incarnation = incarnation;
      tell(fmt::format("island {} is here", site));
    }
    const uint64_t received = said.at("to_life").get<uint64_t>() == incarnation_ ? said.at("received").get<uint64_t>() : 0;
    acknowledge(line, received);
    line.written = received;
    line.stream = std::make_shared<AsyncStream>(std::move(stream));
    line.heard = clock_.now();
    line.beat_due = line.book_due = true;
    line.bye_sent = false;
    publish_incarnation(line);
    asio::co_spawn(io_, read_all(line, line.stream), asio::detached);
    asio::co_spawn(io_, write_all(line, line.stream), asio::detached);
  }

  void publish_incarnation(const Line& line) {
    {
      const std::scoped_lock lock(mutex_);
      incarnations_[static_cast<size_t>(line.site)] = line.incarnation;
    }
    changed();
  }

  static void acknowledge(Line& line, uint64_t received) {
    while (!line.outgoing.empty() && line.outgoing.front().number < received) line.outgoing.pop_front();
  }

  void hang_up(Line& line) {
    if (!line.stream) return;
    line.stream->close();
    line.stream.reset();
    line.away = clock_.now();
    line.wake->cancel();
  }

  // This life of the site is over.
  void lose(Line& line, const std::string& why) {
    hang_up(line);
    if (line.incarnation == 0) return;
    tell(fmt::format("island {} {}", line.site, why));
    line.over = line.incarnation;
    line.incarnation = 0;
    line.outgoing.clear();
    publish_incarnation(line);
  }

  SiteAddress address_of(const Json& said, AsyncStream& stream) const {
    std::string host = said.at("host").get<std::string>();
    if (host.empty()) host = stream.socket().remote_endpoint().address().to_string();
    return {host, said.at("port").get<uint16_t>(), said.at("life").get<uint64_t>()};
  }

  // ---- making connections: sites call those with lower numbers; a visit only tells each side where the others are ----

  asio::awaitable<void> welcome(AsyncStream& caller) {
    const Json said = base::parse_json(co_await caller.read_text(kTextBytesMax));
    if (leaving_) co_return;
    const std::string wrong = check_introduction(said);
    if (!wrong.empty()) {
      if (complained_.insert(wrong).second) tell("an island was refused: " + wrong);
      const std::string answer = refusal_of(wrong);
      co_await caller.write_text(answer);
      co_return;
    }
    const int site = said.at("site");
    if (site == options_.site) {  // this very process
      co_await caller.write_text(introduction(nullptr, false));
      co_return;
    }
    Line& line = lines_[static_cast<size_t>(site)];
    const bool visit = said.at("visit").get<bool>();
    learn(site, address_of(said, caller));
    learn(said.at("book"));
    co_await caller.write_text(introduction(line.incarnation == said.at("life").get<uint64_t>() ? &line : nullptr, visit));
    if (!visit && !leaving_) connect(caller, said);
  }

  asio::awaitable<Json> introduce(AsyncStream& stream, const Line* to, bool visit) {
    co_await stream.begin(&tls_, Tls::Side::calls);
    co_await stream.write_text(introduction(to, visit));
    co_return base::parse_json(co_await stream.read_text(kTextBytesMax));
  }

  // Whoever does not answer in time is left.
  std::shared_ptr<asio::steady_timer> give_up_later(const std::shared_ptr<AsyncStream>& stream) {
    auto timer = std::make_shared<asio::steady_timer>(io_, kIntroduction);
    timer->async_wait([timer, stream](asio::error_code error) {
      if (!error) stream->close();
    });
    return timer;
  }

  asio::awaitable<void> pause(Nanoseconds time) {
    asio::steady_timer timer(io_, time);
    asio::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  void was_refused(const std::string& why) {
    if (!complained_.insert(why).second) return;
    tell("refused: " + why);
    {
      const std::scoped_lock lock(mutex_);
      refusal_ = why;
    }
    changed();
  }

  asio::awaitable<void> call(Line& line) {
    while (!leaving_) {
      const bool over = line.at.incarnation <= line.over;  // it may come again, in the same place
      if (!line.stream && line.at.incarnation != 0) {
        const auto stream = std::make_shared<AsyncStream>(io_);
        const auto timer = give_up_later(stream);
        try {
          co_await stream->connect(line.at.host, line.at.port);
          const Json said = co_await introduce(*stream, line.incarnation == line.at.incarnation ? &line : nullptr, false);
          const std::string wrong = check_introduction(said);
          if (!wrong.empty()) {
            was_refused(wrong);
          } else if (said.at("site").get<int>() == line.site && !leaving_) {
            learn(line.site, address_of(said, *stream));
            learn(said.at("book"));
            connect(*stream, said);
          }
        } catch (const std::exception&) {  // not there now
        }
        timer->cancel();
      }
      co_await pause(over ? kCallOverAfter : kCallAgainAfter);
    }
  }

  asio::awaitable<void> visit(RendezvousEndpoint place) {
    while (!leaving_) {
      const bool alone = std::all_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.incarnation == 0; });
      if (alone) {
        const auto stream = std::make_shared<AsyncStream>(io_);
        const auto timer = give_up_later(stream);
        try {
          co_await stream->connect(place.host, place.port);
          const Json said = co_await introduce(*stream, nullptr, true);
          const std::string wrong = check_introduction(said);
          if (!wrong.empty()) {
            was_refused(wrong);
          } else {
            learn(said.at("site").get<int>(), address_of(said, *stream));
            learn(said.at("book"));
          }
        } catch (const std::exception&) {  // not there now
        }
        timer->cancel();
        stream->close();
      }
      co_await pause(kVisitAgainAfter);
    }
  }

  // ---- a connection ----

  asio::awaitable<void> read_all(Line& line, std::shared_ptr<AsyncStream> stream) {
    try {
      while (true) {
        const auto head = co_await stream->read_value<Head>();
        const int64_t most = head.kind == Head::Kind::message ? options_.message_bytes_max : kTextBytesMax;
        if (head.magic != kMagic || head.bytes < 0 || head.bytes > most) throw Error(Error::Kind::lost_peer, "talks nonsense");
        std::vector<std::byte> body(static_cast<size_t>(head.bytes));
        for (int64_t at = 0; at < head.bytes; at += kReadPiece) {
          co_await stream->read(
              std::span(body).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(kReadPiece, head.bytes - at))));
          line.heard = clock_.now();
        }
        if (line.stream != stream) co_return;
        line.heard = clock_.now();
        acknowledge(line, head.received);
        if (head.kind == Head::Kind::message) take(line, head, std::move(body));
        if (head.kind == Head::Kind::book) learn(base::parse_json({reinterpret_cast<const char*>(body.data()), body.size()}));
        if (head.kind == Head::Kind::bye) {
          lose(line, "has ended its work");
          co_return;
        }
      }
    } catch (const std::exception&) {  // it may come again
      if (line.stream == stream) hang_up(line);
    }
  }

  void take(Line& line, const Head& head, std::vector<std::byte> body) {
    if (head.number != line.received) return;  // it was here already
    ++line.received;
    line.beat_due = true;
    line.wake->cancel();
    {
      const std::scoped_lock lock(mutex_);
      inbox_.push_back({line.site, line.incarnation, std::move(body)});
      ++changes_;
    }
    changed_.notify_all();
  }

  // The first message that this connection has not carried yet; null: none.
  static const Outgoing* unwritten(const Line& line) {
    for (const Outgoing& one : line.outgoing)
      if (one.number >= line.written) return &one;
    return nullptr;
  }

  asio::awaitable<void> write_all(Line& line, std::shared_ptr<AsyncStream> stream) {
    try {
      Nanoseconds beat_at = clock_.now();
      while (line.stream == stream) {
        const Nanoseconds now = clock_.now();
        const Outgoing* message = unwritten(line);
        if (message && message->at <= now) {
          const Outgoing one = *message;  // it may be acknowledged while it is written
          line.written = one.number + 1;
          co_await write(line, *stream, Head::Kind::message, one.number, *one.body);
        } else if (line.book_due) {
          line.book_due = false;
          const std::string text = base::compact(book());
          co_await write(line, *stream, Head::Kind::book, 0, std::as_bytes(std::span(text)));
        } else if (line.beat_due || now >= beat_at) {
          line.beat_due = false;
          beat_at = now + kBeatEvery;
          co_await write(line, *stream, Head::Kind::beat, 0, {});
        } else if (leaving_ && line.outgoing.empty() && !line.bye_sent) {
          line.bye_sent = true;
          co_await write(line, *stream, Head::Kind::bye, 0, {});
        } else {
          line.wake->expires_after((message ? std::min(beat_at, message->at) : beat_at) - now);
          asio::error_code ignored;
          co_await line.wake->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        }
      }
    } catch (const std::exception&) {
      if (line.stream == stream) hang_up(line);
    }
  }

  static asio::awaitable<void> write(const Line& line, AsyncStream& stream, Head::Kind kind, uint64_t number,
                                     std::span<const std::byte> body) {
    const Head head{.kind = kind, .number = number, .received = line.received, .bytes = static_cast<int64_t>(body.size())};
    co_await stream.write_value(head);
    co_await stream.write(body);
  }

  // Looks for those who are silent, who stay away, and, when this site ends, whether all is said.
  asio::awaitable<void> watch() {
    while (!ended_) {
      const Nanoseconds now = clock_.now();
      bool all_said = leaving_;
      for (Line& line : lines_) {
        if (line.stream && now - line.heard > kSilenceMost) hang_up(line);
        if (line.incarnation != 0 && !line.stream && now - line.away > options_.patience)
          lose(line, fmt::format("is lost: it could not be reached for {:.0f} s", base::seconds(options_.patience)));
        all_said = all_said && (line.incarnation == 0 || line.bye_sent);
      }
      if (all_said && !std::exchange(said_, true)) {
        const std::scoped_lock lock(mutex_);
        all_said_ = true;
        changed_.notify_all();
      }
      co_await pause(leaving_ ? Nanoseconds(std::chrono::milliseconds(5)) : Nanoseconds(kGlance));
    }
  }

  const BridgeOptions options_;
  const Tls tls_;
  const uint64_t incarnation_;
  base::RealClock clock_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  uint16_t port_ = 0;
  std::vector<Line> lines_;  // by site; this one's own is unused
  std::optional<Shaper> shaper_;
  std::unique_ptr<UnauthenticatedPeers> unauthenticated_;
  std::set<std::string> refused_, complained_;
  bool leaving_ = false, ended_ = false, said_ = false;

  mutable std::mutex mutex_;  // of what follows, which others read
  std::condition_variable changed_;
  std::deque<Message> inbox_;
  std::vector<uint64_t> incarnations_;
  std::string refusal_;
  uint64_t changes_ = 0, seen_ = 0;
  bool all_said_ = false;

  std::thread thread_;
};

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
