// What callers without the key can cost.
#include "comm/net/unauthenticated_peers.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <gtest/gtest.h>
#include <malloc.h>

#include "base/clock.h"
#include "comm/net/listen.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

// From 127.0.0.1, or another address of this machine's 127.0.0.0/8.
int call(uint16_t port, uint32_t from = INADDR_LOOPBACK) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(from);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);  // completes by itself: the listener's queue is long
  return fd;
}

bool was_closed(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// A listening socket, and a caller with the key.
struct Door {
  explicit Door(std::chrono::nanoseconds patience)
      : listener(listen_at("127.0.0.1")),
        tls(Key{1}),
        callers(io, listener.fd, &tls, patience, [this](AsyncStream& caller) -> asio::awaitable<void> {
          const auto word = co_await caller.read_value<uint32_t>();
          recognised += word == 42;
        }) {}

  void settle() {
    while (io.poll() > 0) io.restart();
    io.restart();
  }

  asio::awaitable<void> knock() {
    AsyncStream stream(io);
    co_await stream.connect("127.0.0.1", listener.port);
    co_await stream.begin(&tls, Tls::Side::client);
    co_await stream.write_value(uint32_t{42});
    knocked.push_back(std::move(stream));
  }

  asio::io_context io{1};
  Listener listener;
  Tls tls;
  int recognised = 0;
  std::vector<AsyncStream> knocked;
  UnauthenticatedPeers callers;
};

// The start of a TLS hello that claims to be as long as one can be and then stops.
std::string slow_hello() {
  std::string text("\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03", 11);
  return text + std::string(12'000, 'x');
}

TEST(UnauthenticatedPeers, EachCostsAtMost64KiB) {
  Door door(5s);
  door.settle();
  std::vector<int> callers;
  constexpr int kCallers = 48;
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kCallers; ++i) {
    callers.push_back(call(door.listener.port));
    const std::string words = slow_hello();
    ::send(callers.back(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  for (int round = 0; round < 20; ++round) door.settle();
  const size_t after = mallinfo2().uordblks;
  int open = 0;
  for (const int caller : callers) open += !was_closed(caller);
  EXPECT_EQ(open, kCallers);                                          // all are still listened to
  EXPECT_LT((after - before) / kCallers, 64u << 10) << "bytes each";  // (0 under a sanitizer, which has its own memory)
  for (const int caller : callers) ::close(caller);
}

TEST(UnauthenticatedPeers, AreSentAwayWhenTheirTimeIsOver) {
  Door door(200ms);
  const int silent = call(door.listener.port), slow = call(door.listener.port);
  const std::string words = slow_hello();
  ::send(slow, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const base::RealClock clock;
  while (clock.now() < 5s && !(was_closed(silent) && was_closed(slow))) door.io.run_one_for(10ms);
  EXPECT_LT(clock.now(), 4s);
  EXPECT_GE(clock.now(), 190ms);
  ::close(silent);
  ::close(slow);
}

TEST(UnauthenticatedPeers, DoNotKeepOutWhoHasTheKey) {
  Door door(5s);
  std::vector<int> callers;
  for (int i = 0; i < 300; ++i) callers.push_back(call(door.listener.port));  // more than are let in at a time
  asio::co_spawn(door.io, door.knock(), asio::detached);
  const base::RealClock clock;
  while (clock.now() < 5s && door.recognised == 0) door.io.run_one_for(10ms);
  EXPECT_EQ(door.recognised, 1);
  EXPECT_LT(clock.now(), 4s);
  int open = 0;
  for (const int caller : callers) open += !was_closed(caller);
  EXPECT_LE(open, 64);
  for (const int caller : callers) ::close(caller);
}

// Lets the door work until the condition holds, for a few seconds at most.
template <typename Done>
void work_until(Door& door, Done done) {
  const base::RealClock clock;
  while (!done() && clock.now() < 5s) door.io.run_one_for(5ms);
}

std::vector<int> still_open(const std::vector<int>& callers) {
  std::vector<int> open;
  for (size_t i = 0; i < callers.size(); ++i)
    if (!was_closed(callers[i])) open.push_back(static_cast<int>(i));
  return open;
}

TEST(UnauthenticatedPeers, OfOneAddressTakeNoPlaceFromAnother) {
  Door door(20s);
  const int early = call(door.listener.port, INADDR_LOOPBACK + 1);
  std::vector<int> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(call(door.listener.port));
  work_until(door, [&] { return still_open(flood).size() <= 64; });
  EXPECT_FALSE(was_closed(early));  // it came first and is the oldest of all
  const std::vector<int> open = still_open(flood);
  ASSERT_EQ(open.size(), 64u);
  EXPECT_EQ(open.front(), 136);  // the oldest have gone
  ::close(early);
  for (const int caller : flood) ::close(caller);
}

TEST(UnauthenticatedPeers, OfManyAddressesLoseAPlaceWhereMostAre) {
  Door door(20s);
  std::vector<int> callers;
  for (uint32_t from = 0; from < 5; ++from)
    for (uint32_t i = 0; i < (from == 0 ? 8u : 63u); ++i) callers.push_back(call(door.listener.port, INADDR_LOOPBACK + from));
  work_until(door, [&] { return still_open(callers).size() <= 256; });
  const std::vector<int> open = still_open(callers);
  EXPECT_EQ(open.size(), 256u);
  ASSERT_GE(open.size(), 9u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(open[static_cast<size_t>(i)], i);  // of the address with the fewest
  EXPECT_GT(open[8], 8);                                                   // the oldest of one that has most is gone
  for (const int caller : callers) ::close(caller);
}

// One that has completed TLS and says nothing more stays, however many come after it from its address.
TEST(UnauthenticatedPeers, KeepWhoHasCompletedTls) {
  Door door(20s);
  const auto greet = [&]() -> asio::awaitable<void> {
    AsyncStream stream(door.io);
    co_await stream.connect("127.0.0.1", door.listener.port);
    co_await stream.begin(&door.tls, Tls::Side::client);
    door.knocked.push_back(std::move(stream));
  };
  asio::co_spawn(door.io, greet, asio::detached);
  work_until(door, [&] { return !door.knocked.empty(); });
  ASSERT_EQ(door.knocked.size(), 1u);
  std::vector<int> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(call(door.listener.port));
    const std::string words = slow_hello();
    if (i % 2 == 0) ::send(flood.back(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  work_until(door, [&] { return still_open(flood).size() <= 63; });  // one of 64 places is taken
  asio::co_spawn(door.io, door.knocked[0].write_value(uint32_t{42}), asio::detached);
  work_until(door, [&] { return door.recognised > 0; });
  EXPECT_EQ(door.recognised, 1);
  EXPECT_EQ(still_open(flood).size(), 63u);
  for (const int caller : flood) ::close(caller);
}

TEST(UnauthenticatedPeers, AreReportedOncePerAddressAndOnlyIfTheyFailed) {
  asio::io_context io{1};
  const Listener listener = listen_at("127.0.0.1");
  const Tls tls(Key{1});
  std::vector<std::string> refused;
  UnauthenticatedPeers callers(
      io, listener.fd, &tls, 20s, [](AsyncStream&) -> asio::awaitable<void> { co_return; },
      [&](const std::string& from) { refused.push_back(from); });
  std::vector<int> all;
  for (int i = 0; i < 100; ++i) all.push_back(call(listener.port, INADDR_LOOPBACK + 2));  // silent: some are dropped, none is refused
  for (int i = 0; i < 3; ++i) {
    all.push_back(call(listener.port));
    ::send(all.back(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
  }
  const base::RealClock clock;
  const auto closed = [&] { return was_closed(all[0]) && was_closed(all[100]) && was_closed(all[101]) && was_closed(all[102]); };
  while (!closed() && clock.now() < 5s) io.run_one_for(5ms);
  EXPECT_TRUE(closed());
  EXPECT_EQ(refused, std::vector<std::string>{"127.0.0.1"});
  for (const int caller : all) ::close(caller);
}

TEST(UnauthenticatedPeers, AreAllSentAwayWhenTheDoorCloses) {
  Door door(5s);
  const int caller = call(door.listener.port);
  for (int round = 0; round < 5; ++round) door.settle();
  EXPECT_FALSE(was_closed(caller));
  door.callers.close();
  door.settle();
  EXPECT_TRUE(was_closed(caller));
  ::close(caller);
}

}  // namespace
}  // namespace cairn::comm
