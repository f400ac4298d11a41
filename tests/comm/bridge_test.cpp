#include "comm/bridge/bridge.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/net/key.h"

namespace cairn::comm {
namespace {

using std::chrono::seconds;

const Key kKey = fresh_key();

BridgeOptions site(int number, int sites, uint16_t near = 0) {
  BridgeOptions options{.site = number, .sites = sites, .key = kKey};
  if (near != 0) options.endpoints = {{"127.0.0.1", near}};
  return options;
}

// Waits until the condition holds, for 20 s at most.
template <typename So>
bool soon(Bridge& bridge, So so) {
  const base::RealClock clock;
  const auto until = clock.now() + seconds(20);
  while (!so()) {
    if (clock.now() > until) return false;
    bridge.wait(std::chrono::milliseconds(20));
  }
  return true;
}

std::vector<std::byte> message(int64_t number, size_t bytes = 100) {
  std::vector<std::byte> body(std::max(bytes, sizeof number), static_cast<std::byte>(number));
  std::memcpy(body.data(), &number, sizeof number);
  return body;
}
int64_t number_of(const Bridge::Message& message) {
  int64_t number = 0;
  std::memcpy(&number, message.body.data(), sizeof number);
  return number;
}

// The next message; fails the test where none comes.
Bridge::Message receive(Bridge& bridge) {
  std::optional<Bridge::Message> came;
  EXPECT_TRUE(soon(bridge, [&] { return (came = bridge.next()).has_value(); }));
  return came.value_or(Bridge::Message{-1, 0, std::vector<std::byte>(8)});
}

bool see_each_other(Bridge& a, Bridge& b) {
  return soon(a, [&] { return a.incarnation(b.site()) != 0 && b.incarnation(a.site()) != 0; });
}

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

TEST(Bridge, ASiteThatEndsIsLostAtOnceAndReturnsAsANewIncarnation) {
  Bridge a(site(0, 2));
  auto b = std::make_unique<Bridge>(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, *b));
  const uint64_t first = a.incarnation(1);
  b->send(0, b->incarnation(0), message(1, 5 << 20));
  b.reset();
  EXPECT_EQ(number_of(receive(a)), 1) << "what was sent before the end is there";
  ASSERT_TRUE(soon(a, [&] { return a.incarnation(1) == 0; }));
  a.send(1, first, message(2));  // to nobody
  b = std::make_unique<Bridge>(site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, *b));
  EXPECT_GT(a.incarnation(1), first);
  a.send(1, first, message(3));
  a.send(1, a.incarnation(1), message(4));
  EXPECT_EQ(number_of(receive(*b)), 4) << "messages to an earlier incarnation are dropped";
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
