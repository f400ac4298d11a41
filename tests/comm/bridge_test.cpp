#include "comm/bridge/bridge.h"

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/bridge_sites.h"

namespace cairn::comm {
namespace {

using namespace bridge_sites;

// Breaks every connection of this process, as a network would.
int break_connections() {
  int broken = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int type = 0;
    socklen_t length = sizeof type;
    sockaddr_storage peer{};
    socklen_t peer_length = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0 || peer.ss_family == AF_UNIX) continue;
    if (::shutdown(fd, SHUT_RDWR) == 0) ++broken;
  }
  return broken;
}

TEST(Bridge, MessagesOfAllSizesArriveInOrder) {
  Bridge a(site(0, 3)), b(site(1, 3, a.port()));
  ASSERT_TRUE(see_each_other(a, b));
  for (int64_t i = 0; i < 20; ++i) a.send(1, a.incarnation(1), message(i, i == 7 ? 3 << 20 : static_cast<size_t>(10 * i)));
  for (int64_t i = 0; i < 20; ++i) {
    const Bridge::Message got = receive(b);
    EXPECT_EQ(number_of(got), i);
    EXPECT_EQ(got.from, 0);
    EXPECT_EQ(got.incarnation, b.incarnation(0));
    EXPECT_TRUE(i != 7 || got.body == message(7, 3 << 20));
  }
  EXPECT_EQ(a.incarnation(2), 0U);
}

// Frames, encryption and handshakes count as well as messages.
TEST(Bridge, CountsTheBytesAtItsSockets) {
  Bridge a(site(0, 2)), b(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, b));
  a.send(1, a.incarnation(1), message(1, 16));
  EXPECT_EQ(number_of(receive(b)), 1);
  const int64_t before = a.socket_bytes();
  EXPECT_GT(before, 16 + 56);
  for (int64_t i = 0; i < 10; ++i) a.send(1, a.incarnation(1), message(i, 100'000));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(number_of(receive(b)), i);
  a.send(1, a.incarnation(1), message(11));  // it is counted after the others were written
  EXPECT_EQ(number_of(receive(b)), 11);
  EXPECT_GE(a.socket_bytes() - before, 9 * 100'000);
  EXPECT_LT(a.socket_bytes() - before, 1'100'000);
}

TEST(Bridge, WhoFindsOneFindsAll) {
  Bridge c(site(2, 4)), a(site(0, 4, c.port()));  // the lower number comes later, and is called by the other
  ASSERT_TRUE(see_each_other(a, c));
  Bridge b(site(1, 4, c.port())), d(site(3, 4, a.port()));
  EXPECT_TRUE(see_each_other(a, b));
  EXPECT_TRUE(see_each_other(b, d));
  EXPECT_TRUE(see_each_other(c, d));
  d.send(1, d.incarnation(1), message(5));
  EXPECT_EQ(number_of(receive(b)), 5);
}

TEST(Bridge, BrokenConnectionsLoseNothingAndRepeatNothing) {
  Bridge a(site(0, 2)), b(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, b));
  const uint64_t incarnation = b.incarnation(0);
  int broken = 0;
  for (int64_t i = 0; i < 60; ++i) {
    a.send(1, a.incarnation(1), message(i, 200'000));
    b.send(0, incarnation, message(i));
    if (i % 20 == 10) broken += break_connections();
    EXPECT_EQ(number_of(receive(b)), i);
    EXPECT_EQ(number_of(receive(a)), i);
  }
  EXPECT_GT(broken, 0);
  EXPECT_EQ(b.incarnation(0), incarnation) << "a connection that is made again is no new incarnation";
}

TEST(Bridge, ASiteThatEndsIsUnreachableAtOnceAndReturnsAsANewIncarnation) {
  Bridge a(site(0, 2));
  auto b = std::make_unique<Bridge>(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, *b));
  const uint64_t first = a.incarnation(1);
  b->send(0, b->incarnation(0), message(1, 5 << 20));
  b.reset();
  EXPECT_EQ(number_of(receive(a)), 1) << "what was sent before the end is there";
  ASSERT_TRUE(soon(a, [&] { return !a.reachable(1); }));
  EXPECT_EQ(a.incarnation(1), first) << "the last known one";
  EXPECT_FALSE(a.send(1, first, message(2)));
  b = std::make_unique<Bridge>(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, *b));
  EXPECT_GT(a.incarnation(1), first);
  EXPECT_FALSE(a.send(1, first, message(3)));
  EXPECT_TRUE(a.send(1, a.incarnation(1), message(4)));
  EXPECT_EQ(number_of(receive(*b)), 4) << "messages to an earlier incarnation are dropped";
}

NextIncarnation counting_from(uint64_t first) {
  return [last = first - 1](uint64_t least) mutable { return last = std::max(last + 1, least); };
}

// The folder of a site that starts again may be new. Both the caller (1) and the called side (0) must be accepted again.
TEST(Bridge, ASiteThatForgotItsNumberReturnsWithAHigherOne) {
  for (const int returns : {1, 0}) {
    BridgeOptions stays = site(1 - returns, 2), first = site(returns, 2);
    first.incarnations = counting_from(1'000'000);
    auto before = std::make_unique<Bridge>(first);
    stays.endpoints = {{"127.0.0.1", before->port()}};
    Bridge other(stays);
    ASSERT_TRUE(see_each_other(*before, other));
    EXPECT_EQ(other.incarnation(returns), 1'000'000u);
    BridgeOptions again = site(returns, 2, other.port());
    again.incarnations = counting_from(500'000);
    again.port = before->port();
    before.reset();
    ASSERT_TRUE(soon(other, [&] { return !other.reachable(returns); }));
    if (returns == 0) again.endpoints.clear();  // it only listens; the other one calls
    Bridge after(again);
    ASSERT_TRUE(see_each_other(after, other)) << "site " << returns;
    EXPECT_GT(other.incarnation(returns), 1'000'000u);
    EXPECT_EQ(after.incarnation(returns), other.incarnation(returns));
    other.send(returns, other.incarnation(returns), message(7));
    EXPECT_EQ(number_of(receive(after)), 7);
  }
}

// Forwards connections from one address to another; what comes back is slowed down.
class SlowProxy {
 public:
  static constexpr int64_t kPiece = 512;
  static constexpr int kPauseMs = 12;

  SlowProxy(const std::string& address, uint16_t port) : listener_(bound(address, port)), port_(port), thread_([this] { run(); }) {}
  ~SlowProxy() {
    ending_ = true;
    thread_.join();
    for (const auto& [caller, called] : pairs_) {
      ::close(caller);
      ::close(called);
    }
    ::close(listener_);
  }
  int connections() const { return connections_; }

 private:
  static sockaddr_in place(const std::string& address, uint16_t port) {
    sockaddr_in where{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
    ::inet_pton(AF_INET, address.c_str(), &where.sin_addr);
    return where;
  }
  static int bound(const std::string& address, uint16_t port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const sockaddr_in where = place(address, port);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    EXPECT_EQ(::listen(fd, 8), 0);
    return fd;
  }
  // Passes on at most `most` bytes; false: the connection is over.
  static bool pass_on(int from, int to, size_t most) {
    std::vector<std::byte> buffer(most);
    const ssize_t got = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    return got > 0 && ::send(to, buffer.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }
  void run() {
    while (!ending_) {
      if (const int caller = ::accept(listener_, nullptr, nullptr); caller >= 0) {
        const int called = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_in where = place("127.0.0.1", port_);
        ::connect(called, reinterpret_cast<const sockaddr*>(&where), sizeof where);
        pairs_.emplace_back(caller, called);
        ++connections_;
      }
      std::erase_if(pairs_, [](const auto& pair) {
        if (pass_on(pair.first, pair.second, 1 << 20) && pass_on(pair.second, pair.first, kPiece)) return false;
        ::close(pair.first);
        ::close(pair.second);
        return true;
      });
      ::poll(nullptr, 0, kPauseMs);
    }
  }

  int listener_;
  uint16_t port_;
  std::vector<std::pair<int, int>> pairs_;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

// 24 KiB at 42 kB/s take 0.6 s, and one TLS record of 16 KiB 0.4 s: both longer than a silent connection is kept.
TEST(Bridge, ALongMessageOnASlowLinkIsNotTakenForSilence) {
  BridgeOptions first = site(0, 2);
  first.known_as = "127.0.0.2";  // the proxy
  first.silence_max = std::chrono::milliseconds(200);
  Bridge a(first);
  const SlowProxy proxy("127.0.0.2", a.port());
  BridgeOptions second = site(1, 2, a.port());
  second.silence_max = first.silence_max;
  Bridge b(second);
  ASSERT_TRUE(see_each_other(a, b));
  a.send(1, a.incarnation(1), message(3, 24 << 10));
  EXPECT_EQ(number_of(receive(b)), 3);
  EXPECT_GE(proxy.connections(), 1);
}

TEST(Bridge, WhoDiffersIsRefusedAndToldWhy) {
  std::atomic<int> refused_callers = 0;
  BridgeOptions first = site(0, 3);
  first.config_fingerprint = "every 30";
  first.tell = [&](const std::string& what) { refused_callers += what.find("key") != std::string::npos ? 1 : 0; };
  Bridge a(first);
  BridgeOptions other = site(1, 3, a.port());
  other.config_fingerprint = "every 40";
  Bridge b(other);
  ASSERT_TRUE(soon(b, [&] { return !b.refusal().empty(); }));
  EXPECT_NE(b.refusal().find("every 40"), std::string::npos) << b.refusal();
  BridgeOptions keyless = site(2, 3, a.port());
  keyless.key = fresh_key();
  const Bridge c(keyless);
  EXPECT_TRUE(soon(a, [&] { return refused_callers > 0; }));
  EXPECT_EQ(a.incarnation(1), 0U);
  EXPECT_EQ(a.incarnation(2), 0U);
}

TEST(Bridge, ANumberThatIsTakenIsRefused) {
  BridgeOptions first = site(0, 2), second = site(1, 2);
  first.silence_max = second.silence_max = std::chrono::milliseconds(300);
  Bridge a(first);
  second.endpoints = {{"127.0.0.1", a.port()}};
  Bridge b(second);
  ASSERT_TRUE(see_each_other(a, b));
  Bridge again(second);
  ASSERT_TRUE(soon(again, [&] { return !again.refusal().empty(); }));
  EXPECT_NE(again.refusal().find("already"), std::string::npos) << again.refusal();
  b.send(0, b.incarnation(0), message(9));
  EXPECT_EQ(number_of(receive(a)), 9);
}

TEST(Bridge, SlowLinksAreAsSlowAsTheyAreSaidToBe) {
  BridgeOptions first = site(0, 2);
  first.links = LinkModel{.latency = std::chrono::milliseconds(100), .bytes_per_s = 10e6, .jitter = 0};
  Bridge a(first);
  BridgeOptions second = site(1, 2, a.port());
  second.links = first.links;
  Bridge b(second);
  ASSERT_TRUE(see_each_other(a, b));
  const base::RealClock clock;
  const auto begun = clock.now();
  a.send(1, a.incarnation(1), message(1, 2'000'000));
  EXPECT_EQ(number_of(receive(b)), 1);
  EXPECT_GE(base::seconds(clock.now() - begun), 0.29);
}

}  // namespace
}  // namespace cairn::comm
