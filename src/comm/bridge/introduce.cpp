// How sites find and recognise each other.
//
// A new site knows one endpoint at least. It visits that endpoint: both sides introduce themselves (version, configuration, site number,
// incarnation, all known addresses) and the visit ends. From then on each site calls every known site with a lower number; calls last as
// connections. Known addresses spread on connections too, so that every site hears of every other one.
//
// Introductions are JSON texts inside TLS. A site that does not fit gets {"refused": "why", "kind": ...} instead. "least_incarnation" is
// the lowest incarnation of the listener that the speaker accepts (bridge.cpp), "known_process" the process that has had it so far: another
// one that took the same number, from a new folder or a copied one, must take a higher one.
//
// A start whose number another one seems to hold is refused while that one is heard. If it just died, its silence ends this within
// `silence_max`; so a site reports such a refusal only if it lasts longer.
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
using bridge::Objection;
using bridge::SiteAddress;

namespace {

constexpr auto kCallAgainAfter = std::chrono::milliseconds(200);
constexpr auto kCallEndedAfter = std::chrono::milliseconds(1000);  // where the last incarnation there is over
constexpr auto kVisitAgainAfter = std::chrono::milliseconds(250);

// In introductions.
constexpr const char* kTaken = "taken";
constexpr const char* kOutdated = "outdated";

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
      all.push_back({{"site", peer.site}, {"host", peer.at.host}, {"port", peer.at.port}, {"incarnation", peer.at.incarnation}});
  return all;
}

void Bridge::Impl::learn(int site, const SiteAddress& at) {
  if (site < 0 || site >= options_.sites || site == options_.site) return;
  Peer& peer = peers_[static_cast<size_t>(site)];
  if (at.incarnation <= peer.at.incarnation) return;
  if (channels_.said_bye(site) && at.incarnation <= channels_.incarnation(site)) return;
  peer.at = at;
  for (Peer& other : peers_) {
    other.addresses_due = true;
    other.wake->cancel();
  }
}

void Bridge::Impl::learn(const Json& entries) {
  for (const Json& one : entries)
    learn(one.at("site").get<int>(),
          {one.at("host").get<std::string>(), one.at("port").get<uint16_t>(), one.at("incarnation").get<uint64_t>()});
}

std::string Bridge::Impl::introduction(bool visit, const Peer* addressee) const {
  const std::string host = !options_.known_as.empty() ? options_.known_as : options_.address;
  return base::compact(Json{{"version", base::version()},
                            {"config_fingerprint", options_.config_fingerprint},
                            {"site", options_.site},
                            {"sites", options_.sites},
                            {"incarnation", channels_.incarnation()},
                            {"process", process_},
                            {"host", host == "0.0.0.0" || host == "::" ? "" : host},
                            {"port", port_},
                            {"visit", visit},
                            {"least_incarnation", addressee ? least_incarnation(*addressee) : 0},
                            {"known_process", addressee ? known_process(*addressee) : ""},
                            {"addresses", addresses()}});
}

// Why this site cannot be one of ours, or cannot be one now.
Objection Bridge::Impl::check_introduction(const Json& said) const {
  using Kind = Objection::Kind;
  try {
    if (said.contains("refused")) {
      const std::string kind = said.value("kind", "");
      return {kind == kTaken ? Kind::taken : kind == kOutdated ? Kind::outdated : Kind::misfit, said.at("refused").get<std::string>()};
    }
    const std::string version = said.at("version"), config_fingerprint = said.at("config_fingerprint"), process = said.at("process");
    const int site = said.at("site"), sites = said.at("sites");
    if (version != base::version()) return {Kind::misfit, fmt::format("one runs Cairn {}, the other {}", base::version(), version)};
    if (sites != options_.sites) return {Kind::misfit, fmt::format("one counts {} islands, the other {}", options_.sites, sites)};
    if (site < 0 || site >= sites) return {Kind::misfit, fmt::format("there is no island {} of {}", site, sites)};
    if (config_fingerprint != options_.config_fingerprint)
      return {Kind::misfit,
              fmt::format("their configurations differ: {} here, {} there", only_in(options_.config_fingerprint, config_fingerprint),
                          only_in(config_fingerprint, options_.config_fingerprint))};
    const auto incarnation = said.at("incarnation").get<uint64_t>();
    const std::string taken = fmt::format("there is an island {} already: give this one another number (--island)", site);
    if (site == options_.site) return process == process_ ? Objection{} : Objection{Kind::misfit, taken};
    const Peer& peer = peers_[static_cast<size_t>(site)];
    const bool other_process = incarnation == channels_.incarnation(site) && !peer.process.empty() && peer.process != process;
    if (peer.stream && (incarnation != channels_.incarnation(site) || other_process) &&
        clock_.now() - channels_.heard_at(site) < options_.silence_max)
      return {Kind::taken, taken};
    if (other_process || incarnation < channels_.incarnation(site) ||
        (incarnation == channels_.incarnation(site) && channels_.said_bye(site)))
      return {Kind::outdated, fmt::format("a later start of island {} is known", site)};
  } catch (const Json::exception&) {
    return {Kind::misfit, "it does not speak this protocol"};
  }
  return {};
}

uint64_t Bridge::Impl::least_incarnation(const Peer& peer) const {
  return std::max(channels_.incarnation(peer.site) + (channels_.said_bye(peer.site) ? 1 : 0), peer.at.incarnation);
}

// The process that has the least incarnation; empty: not known.
std::string Bridge::Impl::known_process(const Peer& peer) const {
  return least_incarnation(peer) == channels_.incarnation(peer.site) ? peer.process : "";
}

// Takes a higher incarnation if the speaker remembers a later one of this site, or another process that had this one. True: it has changed,
// and all connections are closed.
bool Bridge::Impl::renumber(const Json& said) {
  const auto least = said.value("least_incarnation", uint64_t{0});
  const std::string known = said.value("known_process", "");
  const bool had_by_another = least == channels_.incarnation() && !known.empty() && known != process_;
  if (least <= channels_.incarnation() && !had_by_another) return false;
  begin_incarnation(least + 1);  // `least` itself may be a start that the speaker believes to be running
  tell(fmt::format("this island is start {} of its number: others remember a later one than it knew", channels_.incarnation()));
  return true;
}

SiteAddress Bridge::Impl::address_of(const Json& said, AsyncStream& stream) {
  std::string host = said.at("host").get<std::string>();
  if (host.empty()) host = stream.socket().remote_endpoint().address().to_string();
  return {host, said.at("port").get<uint16_t>(), said.at("incarnation").get<uint64_t>()};
}

asio::awaitable<void> Bridge::Impl::refuse(AsyncStream& caller, const Json& said, const Objection& objection) {
  Json answer{{"refused", objection.why}};
  if (objection.kind == Objection::Kind::taken) answer["kind"] = kTaken;
  if (objection.kind == Objection::Kind::outdated) {
    const auto site = said.at("site").get<size_t>();
    answer["kind"] = kOutdated;
    answer["least_incarnation"] = std::max(least_incarnation(peers_[site]), said.at("incarnation").get<uint64_t>() + 1);
  }
  if (objection.kind == Objection::Kind::misfit && complained_.insert(objection.why).second)
    tell("an island was refused: " + objection.why);
  co_await caller.write_text(base::compact(answer));
}

// The called side.
asio::awaitable<void> Bridge::Impl::welcome(AsyncStream& caller) {
  const Json said = base::parse_json(co_await caller.read_text(bridge::kTextBytesMax));
  if (leaving_) co_return;
  const Objection objection = check_introduction(said);
  if (objection.kind != Objection::Kind::none) {
    co_await refuse(caller, said, objection);
    co_return;
  }
  const int site = said.at("site");
  if (is_cut(site)) co_return;
  if (site == options_.site) {  // this very process
    co_await caller.write_text(introduction(false, nullptr));
    co_return;
  }
  renumber(said);
  const uint64_t own = channels_.incarnation();
  const bool visit = said.at("visit").get<bool>();
  learn(site, address_of(said, caller));
  learn(said.at("addresses"));
  co_await caller.write_text(introduction(visit, &peers_[static_cast<size_t>(site)]));
  if (visit || leaving_ || channels_.incarnation() != own || check_introduction(said).kind != Objection::Kind::none) co_return;
  connect(caller, said);
}

// The calling side. Returns what the other one says of itself.
asio::awaitable<Json> Bridge::Impl::introduce(AsyncStream& stream, bool visit, const Peer* addressee) {
  co_await stream.begin(&tls_, Tls::Side::client);
  co_await stream.write_text(introduction(visit, addressee));
  co_return base::parse_json(co_await stream.read_text(bridge::kTextBytesMax));
}

std::shared_ptr<asio::steady_timer> Bridge::Impl::close_after_timeout(const std::shared_ptr<AsyncStream>& stream) {
  auto timer = std::make_shared<asio::steady_timer>(io_, bridge::kIntroductionTimeout);
  timer->async_wait([timer, stream](asio::error_code error) {
    if (!error) stream->close();
  });
  return timer;
}

void Bridge::Impl::was_refused(const Objection& objection) {
  const Nanoseconds now = clock_.now();
  if (objection.kind == Objection::Kind::taken) {
    if (!taken_since_) taken_since_ = now;
    if (now - *taken_since_ < options_.silence_max * 6 / 5) return;  // the others need a moment to notice the silence
  }
  if (!complained_.insert(objection.why).second) return;
  tell("refused: " + objection.why);
  {
    const std::scoped_lock lock(mutex_);
    refusal_ = objection.why;
  }
  changed();
}

// Keeps a connection to a site with a lower number: calls it whenever its address is known and no connection is open.
asio::awaitable<void> Bridge::Impl::call(Peer& peer) {
  while (!leaving_) {
    const bool ended = channels_.said_bye(peer.site);  // a new incarnation may start at the same address
    if (!peer.stream && peer.at.incarnation != 0 && !is_cut(peer.site)) {
      const auto stream = std::make_shared<AsyncStream>(io_);
      const auto timer = close_after_timeout(stream);
      try {
        co_await call_once(peer, *stream);
      } catch (const std::exception&) {  // not there now
      }
      timer->cancel();
    }
    co_await pause(ended ? kCallEndedAfter : kCallAgainAfter);
  }
}

asio::awaitable<void> Bridge::Impl::call_once(Peer& peer, AsyncStream& stream) {
  const SiteAddress at = peer.at;
  co_await stream.connect(at.host, at.port);
  const uint64_t own = channels_.incarnation();
  const Json said = co_await introduce(stream, false, &peer);
  if (leaving_) co_return;
  const Objection objection = check_introduction(said);
  if (renumber(said) || channels_.incarnation() != own || objection.kind == Objection::Kind::outdated) co_return;  // calls again
  if (objection.kind != Objection::Kind::none) {
    was_refused(objection);
  } else if (said.at("site").get<int>() == peer.site) {
    learn(peer.site, address_of(said, stream));
    learn(said.at("addresses"));
    connect(stream, said);
  }
}

// While no other site is connected: asks at this endpoint where the others are.
asio::awaitable<void> Bridge::Impl::visit(RendezvousEndpoint endpoint) {
  while (!leaving_) {
    const bool alone = std::none_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.stream != nullptr; });
    if (alone) {
      const auto stream = std::make_shared<AsyncStream>(io_);
      const auto timer = close_after_timeout(stream);
      try {
        co_await stream->connect(endpoint.host, endpoint.port);
        const Json said = co_await introduce(*stream, true, nullptr);
        const Objection objection = check_introduction(said);
        if (renumber(said) || objection.kind == Objection::Kind::outdated) {  // the next visit may fit
        } else if (objection.kind != Objection::Kind::none) {
          was_refused(objection);
        } else {
          learn(said.at("site").get<int>(), address_of(said, *stream));
          learn(said.at("addresses"));
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
