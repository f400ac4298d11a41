#pragma once
// The inside of Bridge, shared by its three sources: bridge.cpp (life cycle, sending), introduce.cpp (who is where, making connections),
// stream.cpp (messages on a connection). Everything here runs on the bridge's own thread, unless a line says otherwise.
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
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "comm/bridge/bridge.h"
#include "comm/net/async_stream.h"
#include "comm/net/tls.h"
#include "comm/net/unauthenticated_peers.h"

namespace cairn::comm {

namespace bridge {

inline constexpr uint32_t kMagic = 0x62726467;
inline constexpr uint32_t kTextBytesMax = 1 << 20;
inline constexpr auto kIntroductionTimeout = std::chrono::seconds(5);  // for a caller that has not introduced itself

// The fixed-size header of everything that travels on a connection.
struct Head {
  enum class Kind : uint32_t { message = 1, heartbeat = 2, addresses = 3, bye = 4 };
  uint32_t magic = kMagic;
  Kind kind = Kind::heartbeat;
  uint64_t number = 0;    // of a message: its sequence number
  uint64_t received = 0;  // the sender's acknowledgement: it has all messages below this number
  int64_t bytes = 0;      // of the body
};
static_assert(sizeof(Head) == 32);

// Where one incarnation of a site can be called. A later incarnation has a higher number.
struct SiteAddress {
  std::string host;
  uint16_t port = 0;
  uint64_t incarnation = 0;
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
  std::string refusal() const;
  void send(int to, uint64_t incarnation, std::vector<std::byte> body);
  std::optional<Message> next();
  void wait(Nanoseconds most);

 private:
  struct Outgoing {
    uint64_t number = 0;
    Nanoseconds at{};  // when it may leave
    std::shared_ptr<const std::vector<std::byte>> body;
  };
  // What this site knows of another one. Connections come and go; the rest lasts as long as that site's incarnation.
  struct Peer {
    int site = 0;
    uint64_t incarnation = 0;  // 0: it is not here
    uint64_t ended = 0;        // its latest incarnation that is over
    bridge::SiteAddress at;    // as far as it is known
    std::shared_ptr<AsyncStream> stream;
    std::deque<Outgoing> outgoing;  // not acknowledged yet
    uint64_t sent = 0;              // number of the next message to send
    uint64_t received = 0;          // number of the next message to receive
    uint64_t written = 0;           // number of the next message to write on this connection
    Nanoseconds heard{};            // when something came last
    Nanoseconds away{};             // since when there is no connection
    bool heartbeat_due = false, addresses_due = false, bye_sent = false;
    std::unique_ptr<asio::steady_timer> wake;  // wakes the writer
  };

  // Life cycle (bridge.cpp).
  void tell(const std::string& what) const;
  void changed();
  void connect(AsyncStream& stream, const base::Json& said);
  void publish_incarnation(const Peer& peer);
  static void acknowledge(Peer& peer, uint64_t received);
  void hang_up(Peer& peer);
  void lose(Peer& peer, const std::string& why);
  asio::awaitable<void> pause(Nanoseconds time);
  asio::awaitable<void> watch();

  // Addresses and introductions (introduce.cpp).
  base::Json addresses() const;
  void learn(int site, const bridge::SiteAddress& at);
  void learn(const base::Json& entries);
  std::string introduction(const Peer* to, bool visit, const Peer* addressee) const;
  std::string check_introduction(const base::Json& said) const;
  static uint64_t least_incarnation(const Peer& peer);
  bool renumber(const base::Json& said);
  static bridge::SiteAddress address_of(const base::Json& said, AsyncStream& stream);
  asio::awaitable<void> welcome(AsyncStream& caller);
  asio::awaitable<base::Json> introduce(AsyncStream& stream, const Peer* to, bool visit, const Peer* addressee);
  std::shared_ptr<asio::steady_timer> close_after_timeout(const std::shared_ptr<AsyncStream>& stream);
  void was_refused(const std::string& why);
  asio::awaitable<void> call(Peer& peer);
  asio::awaitable<void> visit(RendezvousEndpoint endpoint);

  // A connection (stream.cpp).
  asio::awaitable<void> read_all(Peer& peer, std::shared_ptr<AsyncStream> stream);
  void take(Peer& peer, const bridge::Head& head, std::vector<std::byte> body);
  static const Outgoing* unwritten(const Peer& peer);
  asio::awaitable<void> write_all(Peer& peer, std::shared_ptr<AsyncStream> stream);
  static asio::awaitable<void> write(const Peer& peer, AsyncStream& stream, bridge::Head::Kind kind, uint64_t number,
                                     std::span<const std::byte> body);

  const BridgeOptions options_;
  const Tls tls_;
  std::atomic<uint64_t> incarnation_;  // other threads read it
  bool connected_before_ = false;      // to any site, in this start
  base::RealClock clock_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  uint16_t port_ = 0;
  std::vector<Peer> peers_;  // by site; this one's own is unused
  std::optional<Shaper> shaper_;
  std::unique_ptr<UnauthenticatedPeers> unauthenticated_;
  std::set<std::string> refused_, complained_;
  bool leaving_ = false, ended_ = false, farewell_done_ = false;

  mutable std::mutex mutex_;  // protects what follows, which other threads read
  std::condition_variable changed_;
  std::deque<Message> inbox_;
  std::vector<uint64_t> incarnations_;
  std::string refusal_;
  uint64_t changes_ = 0, seen_ = 0;
  bool all_said_ = false;

  std::thread thread_;
};

}  // namespace cairn::comm
