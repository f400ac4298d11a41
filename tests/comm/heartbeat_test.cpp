// Heartbeats between machines while strangers send datagrams to the same port.
#include "comm/net/heartbeat.h"

#include <arpa/inet.h>
#include <array>
#include <functional>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/net/listen.h"
#include "comm/net/liveness.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kFlood = 3000;  // more than the queue of a socket takes

// Two ranks on two machines; rank 1 is a stranger's view of the other side.
struct TwoMachines {
  TwoMachines() : setups(make_net_setups(std::vector<int>{0, 1})) {}
  ~TwoMachines() {
    for (const NetSetup& setup : setups) {
      ::close(setup.listener_fd);
      ::close(setup.outside_fd);
    }
  }
  uint16_t port(size_t rank) const { return setups[rank].addresses[rank].outside_port; }
  std::vector<NetSetup> setups;
};

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

struct Stranger {
  Stranger() : socket(listen_tcp_and_udp("127.0.0.1")) {}
  ~Stranger() {
    ::close(socket.tcp.fd);
    ::close(socket.udp_fd);
  }
  void send(uint16_t port, const std::string& bytes, int times) const {
    const sockaddr_in to = loopback(port);
    for (int i = 0; i < times; ++i)
      ::sendto(socket.udp_fd, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  std::string receive() const {
    std::string bytes(1000, '\0');
    const ssize_t got = ::recv(socket.udp_fd, bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  ListenerPair socket;
};

// One heartbeat of rank 1 to rank 0, as somebody sees it who reads the network.
std::string copied_heartbeat(TwoMachines& machines, const Stranger& stranger) {
  NetSetup setup = machines.setups[1];
  setup.addresses[0].outside_port = stranger.socket.tcp.port;
  setup.heartbeat_fd = ::dup(setup.heartbeat_fd);
  Heartbeat rank1(setup);
  StatusBoard board{};
  board.beat = 7;
  rank1.send(board);
  return stranger.receive();
}

TEST(Heartbeat, StrangersTakeNoPlaceInTheQueue) {
  TwoMachines machines;
  const Stranger stranger;
  const std::string heartbeat = copied_heartbeat(machines, stranger);
  Heartbeat rank0(machines.setups[0]), rank1(machines.setups[1]);
  std::string forged = heartbeat;
  forged[0] = static_cast<char>(forged[0] + 1);  // the cookie is all that a stranger cannot know
  for (const std::string& bytes : {forged, std::string(20, 'x'), heartbeat + "x", std::string()})
    stranger.send(machines.port(0), bytes, kFlood);
  StatusBoard board{};
  board.beat = 41;
  rank1.send(board);
  EXPECT_TRUE(rank0.receive());
  EXPECT_EQ(rank0.board(1)->beat.load(), 41u);
  EXPECT_GT(rank0.since_flood(), 24h);
}

TEST(Heartbeat, ACopiedHeartbeatSaysNothingNewAndAFloodOfThemIsNoticed) {
  TwoMachines machines;
  const Stranger stranger;
  const std::string heartbeat = copied_heartbeat(machines, stranger);
  Heartbeat rank0(machines.setups[0]);
  stranger.send(machines.port(0), heartbeat, 1);
  EXPECT_TRUE(rank0.receive());
  EXPECT_EQ(rank0.board(1)->beat.load(), 7u);
  const auto age = rank0.age(1);
  stranger.send(machines.port(0), heartbeat, 3);
  EXPECT_TRUE(rank0.receive());
  EXPECT_GE(rank0.age(1), age);  // it counts once
  stranger.send(machines.port(0), heartbeat, kFlood);
  EXPECT_FALSE(rank0.receive());  // bounded: the rest waits
  EXPECT_LT(rank0.since_flood(), 10s);
  ::close(machines.setups[1].heartbeat_fd);
}

// Looks at rank 1 for 2.8 s of made-up time. Whether it is judged to have stopped.
bool judged(PeerLiveness& liveness, std::chrono::nanoseconds& now) {
  bool stopped = false;
  for (int look = 0; look < 8; ++look) {
    liveness.begin_look(now);
    stopped = liveness.stopped(1, now).has_value();
    now += 400ms;
  }
  return stopped;
}

TEST(Liveness, ASilentRankIsLostButNotWhileAFloodMayHideItsHeartbeats) {
  TwoMachines machines;
  const Stranger stranger;
  const std::string heartbeat = copied_heartbeat(machines, stranger);
  PeerLiveness liveness(machines.setups[0], nullptr);
  const base::RealClock clock;
  std::chrono::nanoseconds now = 1h;
  EXPECT_FALSE(judged(liveness, now));  // never heard from
  stranger.send(machines.port(0), heartbeat, 1);
  bool lost = false;
  while (!lost && clock.now() < 10s) lost = judged(liveness, now);
  EXPECT_TRUE(lost);
  while (lost && clock.now() < 20s) {
    stranger.send(machines.port(0), heartbeat, 300);
    lost = judged(liveness, now);
  }
  EXPECT_FALSE(lost);
  ::close(machines.setups[1].heartbeat_fd);
}

TEST(Liveness, BytesOnTheConnectionAreASignOfLife) {
  StatusBoard board{};
  board.beat = 1;
  LivenessMonitor watch(1);
  const auto silent = [&](std::chrono::nanoseconds now) {
    watch.begin(now);
    return watch.silent(0, board, now);
  };
  EXPECT_EQ(silent(10s), 0s);
  EXPECT_EQ(silent(10400ms), 400ms);
  watch.heard(0);
  EXPECT_EQ(silent(10500ms), 0s);
  EXPECT_EQ(silent(10600ms), 100ms);
}

}  // namespace
}  // namespace cairn::comm
