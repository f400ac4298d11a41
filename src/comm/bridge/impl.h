#pragma once
// The inside of Bridge: input and output around SiteChannels, which decides what travels. Shared by three sources: bridge.cpp (life cycle,
// sending), introduce.cpp (who is where, making connections), stream.cpp (frames on a connection). Everything here runs on the bridge's own
// thread, unless a line says otherwise.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "comm/bridge/bridge.h"
#include "comm/bridge/site_channels.h"
#include "comm/net/async_stream.h"
#include "comm/net/tls.h"
#include "comm/net/unauthenticated_peers.h"

namespace cairn::comm {

namespace bridge {

inline constexpr uint32_t kMagic = 0x62726467;
inline constexpr uint32_t kTextBytesMax = 1 << 20;
inline constexpr auto kIntroductionTimeout = std::chrono::seconds(5);  // for a caller that has not introduced itself

// The fixed-size header of a frame on a connection.
struct Head {
  uint32_t magic = kMagic;
  SiteFrame::Kind kind = SiteFrame::Kind::heartbeat;
  uint8_t relayed = 0;
  uint16_t spare = 0;
  int32_t origin = 0, target = 0;
  uint64_t origin_incarnation = 0, target_incarnation = 0;
  uint64_t number = 0;
  uint64_t received = 0;
  int64_t bytes = 0;  // of the body
};
static_assert(sizeof(Head) == 56);

// Where one incarnation of a site can be called. A later incarnation has a higher number.
struct SiteAddress {
  std::string host;
  uint16_t port = 0;
  uint64_t incarnation = 0;
};

// Why a site that introduces itself is refused.
struct Objection {
  enum class Kind {
    none,
    misfit,    // it cannot be one of ours
    taken,     // another start of this site seems to run; it may just have died
    outdated,  // a later start of this site is known, or this one under another process: it needs a higher number
  };
  Kind kind = Kind::none;
  std::string why = {};
};

}  // namespace bridge

class Bridge::Impl {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  explicit Impl(BridgeOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The public face. Any thread may call these.
  int site() const { return options_.site; }
  int sites() const { return options_.sites; }
  uint16_t port() const { return port_; }
  uint64_t incarnation(int site) const;
  bool reachable(int site) const;
  std::string refusal() const;
  bool send(int to, uint64_t incarnation, std::vector<std::byte> body);
  std::optional<Message> next();
  std::vector<SiteChannels::Relayed> take_relayed();
  int64_t socket_bytes() const { return socket_bytes_; }
  void renew();
  void wait(Nanoseconds most);

 private:
  // A site as users see it.
  struct Shown {
    uint64_t incarnation = 0;
    bool reachable = false;
    int first_hop = -1;
    bool operator==(const Shown&) const = default;
  };
  // The connection with another site, and what is needed to make it.
  struct Peer {
    int site = 0;
    bridge::SiteAddress at;  // as far as it is known
    std::string process;     // of the incarnation that was connected last: tells two starts with one number apart
    std::shared_ptr<AsyncStream> stream;
    int64_t counted_bytes = 0;  // of the stream, in socket_bytes_
    bool addresses_due = false;
    std::unique_ptr<asio::steady_timer> wake;  // wakes the writer
    Shown shown;
  };

  // Life cycle (bridge.cpp).
  void tell(const std::string& what) const;
  void changed();
  void connect(AsyncStream& stream, const base::Json& said);
  void publish();
  void tell_change(const Shown& before, const Shown& now, int site) const;
  void wake_writers();
  void hang_up(Peer& peer);
  void count_bytes(Peer& peer);
  void begin_incarnation(uint64_t least);
  bool is_cut(int site) const { return options_.is_cut && options_.is_cut(site); }
  asio::awaitable<void> pause(Nanoseconds time);
  asio::awaitable<void> watch();

  // Addresses and introductions (introduce.cpp).
  base::Json addresses() const;
  void learn(int site, const bridge::SiteAddress& at);
  void learn(const base::Json& entries);
  std::string introduction(bool visit, const Peer* addressee) const;
  bridge::Objection check_introduction(const base::Json& said) const;
  uint64_t least_incarnation(const Peer& peer) const;
  std::string known_process(const Peer& peer) const;
  bool renumber(const base::Json& said);
  static bridge::SiteAddress address_of(const base::Json& said, AsyncStream& stream);
  asio::awaitable<void> welcome(AsyncStream& caller);
  asio::awaitable<void> refuse(AsyncStream& caller, const base::Json& said, const bridge::Objection& objection);
  asio::awaitable<base::Json> introduce(AsyncStream& stream, bool visit, const Peer* addressee);
  std::shared_ptr<asio::steady_timer> close_after_timeout(const std::shared_ptr<AsyncStream>& stream);
  void was_refused(const bridge::Objection& objection);
  asio::awaitable<void> call(Peer& peer);
  asio::awaitable<void> call_once(Peer& peer, AsyncStream& stream);
  asio::awaitable<void> visit(RendezvousEndpoint endpoint);

  // A connection (stream.cpp).
  asio::awaitable<void> give_way();
  asio::awaitable<void> read_all(Peer& peer, std::shared_ptr<AsyncStream> stream);
  asio::awaitable<void> write_all(Peer& peer, std::shared_ptr<AsyncStream> stream);

  const BridgeOptions options_;
  const Tls tls_;
  const std::string process_;  // a name of this process that nobody else has
  NextIncarnation next_incarnation_;
  base::RealClock clock_;
  SiteChannels channels_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  uint16_t port_ = 0;
  std::vector<Peer> peers_;  // by site; this one's own is unused
  std::optional<Shaper> shaper_;
  std::unique_ptr<UnauthenticatedPeers> unauthenticated_;
  std::set<std::string> refused_, complained_;
  std::optional<Nanoseconds> taken_since_;  // others refuse this site because its number seems to be taken
  bool leaving_ = false, ended_ = false, farewell_done_ = false;
  Nanoseconds said_at_{};  // when all sites that are reachable had been told goodbye

  std::atomic<int64_t> socket_bytes_ = 0;
  mutable std::mutex mutex_;  // protects what follows, which other threads read
  std::condition_variable changed_;
  std::deque<Message> inbox_;
  uint64_t incarnation_ = 0;  // this site's
  std::vector<Shown> shown_;  // by site
  std::vector<SiteChannels::Relayed> relayed_;
  std::string refusal_;
  uint64_t changes_ = 0, seen_ = 0;
  bool all_said_ = false;

  std::thread thread_;
};

}  // namespace cairn::comm
