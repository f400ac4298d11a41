// How sites find and recognise each other.
//
// A new site knows one endpoint at least. It visits that endpoint: both sides introduce themselves (version, configuration, site number,
// incarnation, all known addresses) and the visit ends. From then on each site calls every known site with a lower number; calls last as
// connections. Known addresses spread on connections too, so that every site hears of every other one.
//
// Introductions are JSON texts inside TLS. A site that does not fit gets {"refused": "why"} instead. "least_life" is the
// lowest incarnation of the listener that the speaker accepts (bridge.cpp).
#include <algorithm>
#include <sstream>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/version.h"
#include "comm/bridge/impl.h"

namespace cairn::comm {

using base::Json;
using bridge::SiteAddress;

namespace {

constexpr auto kCallAgainAfter = std::chrono::milliseconds(200);
constexpr auto kCallEndedAfter = std::chrono::milliseconds(1000);  // where the last incarnation there is over
constexpr auto kVisitAgainAfter = std::chrono::milliseconds(500);

constexpr const char* kGivenUp = "it was given up: start it again";

bool is_outdated(const std::string& wrong, const Json& said) { return wrong == kGivenUp && !said.contains("refused"); }

// The lines of `text` that `other` does not have, as a list for people.
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

}  // namespace

Json Bridge::Impl::addresses() const {
  Json all = Json::array();
  for (const Peer& peer : peers_)
    if (peer.at.incarnation != 0)
      all.push_back({{"site", peer.site}, {"host", peer.at.host}, {"port", peer.at.port}, {"life", peer.at.incarnation}});
  return all;
}

void Bridge::Impl::learn(int site, const SiteAddress& at) {
  if (site < 0 || site >= options_.sites || site == options_.site) return;
  Peer& peer = peers_[static_cast<size_t>(site)];
  if (at.incarnation <= peer.at.incarnation || at.incarnation <= peer.ended) return;
  peer.at = at;
  for (Peer& other : peers_) {
    other.addresses_due = true;
    other.wake->cancel();
  }
}

void Bridge::Impl::learn(const Json& entries) {
  for (const Json& one : entries)
    learn(one.at("site").get<int>(), {one.at("host").get<std::string>(), one.at("port").get<uint16_t>(), one.at("life").get<uint64_t>()});
}

std::string Bridge::Impl::introduction(const Peer* to, bool visit, const Peer* addressee) const {
  const std::string host = !options_.known_as.empty() ? options_.known_as : options_.address;
  return base::compact(Json{{"version", base::version()},
                            {"config_fingerprint", options_.config_fingerprint},
                            {"site", options_.site},
                            {"sites", options_.sites},
                            {"life", incarnation_.load()},
                            {"host", host == "0.0.0.0" || host == "::" ? "" : host},
                            {"port", port_},
                            {"visit", visit},
                            {"to_life", to ? to->incarnation : 0},
                            {"received", to ? to->received : 0},
                            {"least_life", addressee ? least_incarnation(*addressee) : 0},
                            {"book", addresses()}});
}

// Empty, or why this site cannot be one of ours.
std::string Bridge::Impl::check_introduction(const Json& said) const {
  try {
    if (said.contains("refused")) return said.at("refused").get<std::string>();
    const std::string version = said.at("version"), config_fingerprint = said.at("config_fingerprint");
    const int site = said.at("site"), sites = said.at("sites");
    if (version != base::version()) return fmt::format("one runs Cairn {}, the other {}", base::version(), version);
    if (sites != options_.sites) return fmt::format("one counts {} islands, the other {}", options_.sites, sites);
    if (site < 0 || site >= sites) return fmt::format("there is no island {} of {}", site, sites);
    if (config_fingerprint != options_.config_fingerprint)
      return fmt::format("their configurations differ: {} here, {} there", only_in(options_.config_fingerprint, config_fingerprint),
                         only_in(config_fingerprint, options_.config_fingerprint));
    const auto incarnation = said.at("life").get<uint64_t>();
    if (site == options_.site)
      return incarnation == incarnation_ ? "" : fmt::format("there is an island {} already: give this one another number (--island)", site);
    const Peer& peer = peers_[static_cast<size_t>(site)];
    if (peer.stream && peer.incarnation != incarnation && clock_.now() - peer.heard < options_.silence_max)
      return fmt::format("there is an island {} already: give this one another number (--island)", site);
    if (incarnation < peer.incarnation || incarnation <= peer.ended) return kGivenUp;
  } catch (const Json::exception&) {
    return "it does not speak this protocol";
  }
  return "";
}

uint64_t Bridge::Impl::least_incarnation(const Peer& peer) {
  return std::max({peer.incarnation, peer.ended == 0 ? 0 : peer.ended + 1, peer.at.incarnation});
}

// Takes a higher incarnation if the speaker remembers a later one of this site, and this start has met nobody yet. True: it has changed.
bool Bridge::Impl::renumber(const Json& said) {
  const auto least = said.value("least_life", uint64_t{0});
  if (connected_before_ || least <= incarnation_) return false;
  incarnation_ = least + 1;  // `least` itself may be a start that the speaker believes to be running
  return true;
}

SiteAddress Bridge::Impl::address_of(const Json& said, AsyncStream& stream) {
  std::string host = said.at("host").get<std::string>();
  if (host.empty()) host = stream.socket().remote_endpoint().address().to_string();
  return {host, said.at("port").get<uint16_t>(), said.at("life").get<uint64_t>()};
}

// The called side.
asio::awaitable<void> Bridge::Impl::welcome(AsyncStream& caller) {
  const Json said = base::parse_json(co_await caller.read_text(bridge::kTextBytesMax));
  if (leaving_) co_return;
  const std::string wrong = check_introduction(said);
  if (!wrong.empty()) {
    Json answer{{"refused", wrong}};
    if (is_outdated(wrong, said)) answer["least_life"] = least_incarnation(peers_[said.at("site").get<size_t>()]);
    if (complained_.insert(wrong).second) tell("an island was refused: " + wrong);
    co_await caller.write_text(base::compact(answer));
    co_return;
  }
  const int site = said.at("site");
  if (site == options_.site) {  // this very process
    co_await caller.write_text(introduction(nullptr, false, nullptr));
    co_return;
  }
  renumber(said);
  const uint64_t own = incarnation_;
  Peer& peer = peers_[static_cast<size_t>(site)];
  const bool visit = said.at("visit").get<bool>();
  learn(site, address_of(said, caller));
  learn(said.at("book"));
  co_await caller.write_text(introduction(peer.incarnation == said.at("life").get<uint64_t>() ? &peer : nullptr, visit, &peer));
  if (!visit && !leaving_ && incarnation_ == own) connect(caller, said);
}

// The calling side. Returns what the other one says of itself.
asio::awaitable<Json> Bridge::Impl::introduce(AsyncStream& stream, const Peer* to, bool visit, const Peer* addressee) {
  co_await stream.begin(&tls_, Tls::Side::client);
  co_await stream.write_text(introduction(to, visit, addressee));
  co_return base::parse_json(co_await stream.read_text(bridge::kTextBytesMax));
}

std::shared_ptr<asio::steady_timer> Bridge::Impl::close_after_timeout(const std::shared_ptr<AsyncStream>& stream) {
  auto timer = std::make_shared<asio::steady_timer>(io_, bridge::kIntroductionTimeout);
  timer->async_wait([timer, stream](asio::error_code error) {
    if (!error) stream->close();
  });
  return timer;
}

void Bridge::Impl::was_refused(const std::string& why) {
  if (!complained_.insert(why).second) return;
  tell("refused: " + why);
  {
    const std::scoped_lock lock(mutex_);
    refusal_ = why;
  }
  changed();
}

// Keeps a connection to a site with a lower number: calls it whenever its address is known and no connection is open.
asio::awaitable<void> Bridge::Impl::call(Peer& peer) {
  while (!leaving_) {
    const bool ended = peer.at.incarnation <= peer.ended;  // a new incarnation may start at the same address
    if (!peer.stream && peer.at.incarnation != 0) {
      const auto stream = std::make_shared<AsyncStream>(io_);
      const auto timer = close_after_timeout(stream);
      try {
        co_await stream->connect(peer.at.host, peer.at.port);
        const uint64_t own = incarnation_;
        const Json said = co_await introduce(*stream, peer.incarnation == peer.at.incarnation ? &peer : nullptr, false, &peer);
        const std::string wrong = check_introduction(said);
        if (renumber(said) || is_outdated(wrong, said) || incarnation_ != own) {  // calls again; one of them has a new number then
        } else if (!wrong.empty()) {
          was_refused(wrong);
        } else if (said.at("site").get<int>() == peer.site && !leaving_) {
          learn(peer.site, address_of(said, *stream));
          learn(said.at("book"));
          connect(*stream, said);
        }
      } catch (const std::exception&) {  // not there now
      }
      timer->cancel();
    }
    co_await pause(ended ? kCallEndedAfter : kCallAgainAfter);
  }
}

// While no other site is connected: asks at this endpoint where the others are.
asio::awaitable<void> Bridge::Impl::visit(RendezvousEndpoint endpoint) {
  while (!leaving_) {
    const bool alone = std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.incarnation == 0; });
    if (alone) {
      const auto stream = std::make_shared<AsyncStream>(io_);
      const auto timer = close_after_timeout(stream);
      try {
        co_await stream->connect(endpoint.host, endpoint.port);
        const Json said = co_await introduce(*stream, nullptr, true, nullptr);
        const std::string wrong = check_introduction(said);
        if (renumber(said) || is_outdated(wrong, said)) {  // the next visit may fit
        } else if (!wrong.empty()) {
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

}  // namespace cairn::comm
