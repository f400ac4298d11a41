// Machines that find each other: threads that each play one, over loopback.
#include "comm/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net/async_stream.h"
#include "comm/net/call_attempts.h"
#include "comm/net/listen.h"
#include "comm/world.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kX{Purpose::data, "x"};

Key key_of(uint8_t first) {
  Key key{};
  key[0] = first;
  return key;
}

RendezvousEndpoint free_endpoint() {
  const Listener listener = listen_at("127.0.0.1");
  ::close(listener.fd);
  return {"127.0.0.1", listener.port};
}

struct Machine {
  NodeSpec spec;
  Key key = key_of(1);
  std::string config_fingerprint = "the recipe";
  std::chrono::nanoseconds deadline = 10s;
  std::vector<std::string> more_interfaces = {};
};

// Lets every machine come to one place; then all ranks sum their numbers. What became of each machine: "" or its error.
std::vector<std::string> meet_and_sum(const std::vector<Machine>& machines, std::vector<int>* ranks_seen = nullptr) {
  std::vector<std::string> ends(machines.size());
  const RendezvousEndpoint place = free_endpoint();
  std::mutex lock;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < machines.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          const Tls tls(machines[i].key);
          auto setups = rendezvous_nodes(machines[i].spec, tls,
                                         {.endpoint = place,
                                          .more_interfaces = machines[i].more_interfaces,
                                          .config_fingerprint = machines[i].config_fingerprint,
                                          .deadline = machines[i].deadline});
          std::vector<std::jthread> ranks;
          for (NetSetup& setup : setups) {
            ranks.emplace_back([&, setup] {
              const int channels = machines[i].more_interfaces.empty() ? 1 : 2;
              World world(make_net_transport(setup, {.channels = channels}), {.deadline = 10s});
              for (const auto& [which, one] : world.ledger().channels())
                EXPECT_EQ(one.plane, std::get<2>(which));  // a channel on each interface
              auto x = static_cast<float>(world.rank() + 1);
              world.everyone().all_reduce({&x, 1, Dtype::f32}, Reduce::sum, kX).wait();
              EXPECT_EQ(x, static_cast<float>(world.size() * (world.size() + 1) / 2));
              const std::lock_guard guard(lock);
              if (ranks_seen) ranks_seen->push_back(world.rank());
            });
          }
        } catch (const Error& error) {
          ends[i] = error.what();
        }
      });
    }
  }
  return ends;
}

TEST(Rendezvous, RanksAreNumberedByMachineAndAllCanTalk) {
  std::vector<int> ranks;
  const auto ends = meet_and_sum({{.spec = {.node = 1, .nodes = 3, .count = 1}},
                                  {.spec = {.node = 2, .nodes = 3, .count = 3}},
                                  {.spec = {.node = 0, .nodes = 3, .count = 2}}},
                                 &ranks);
  EXPECT_THAT(ends, testing::Each(""));
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Rendezvous, MachinesLearnOfAllInterfacesOfEachOther) {
  std::vector<int> ranks;
  const auto ends = meet_and_sum({{.spec = {.node = 1, .nodes = 2, .count = 2}, .more_interfaces = {"127.0.0.2"}},
                                  {.spec = {.node = 0, .nodes = 2, .count = 1}, .more_interfaces = {"127.0.0.2"}}},
                                 &ranks);
  EXPECT_THAT(ends, testing::Each(""));
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2));
}

TEST(Rendezvous, RanksThatALauncherNumberedKeepTheirNumbers) {
  std::vector<int> ranks;
  const auto ends =
      meet_and_sum({{.spec = {.count = 2, .ranks = {0, 2}, .size = 4}}, {.spec = {.count = 2, .ranks = {1, 3}, .size = 4}}}, &ranks);
  EXPECT_THAT(ends, testing::Each(""));
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2, 3));
}

// The answer to a machine that comes while the first one waits, which gives up afterwards: "" or its error.
std::string told_to(const Machine& other) {
  const RendezvousEndpoint place = free_endpoint();
  base::Stop stop;
  const std::jthread first([&] {
    const Tls tls(key_of(1));
    const RendezvousOptions options{.endpoint = place, .config_fingerprint = "the recipe", .deadline = 60s, .stop = &stop};
    EXPECT_THROW(rendezvous_nodes({.node = 0, .nodes = 2}, tls, options), Error);
  });
  std::string told;
  try {
    const Tls tls(other.key);
    rendezvous_nodes(other.spec, tls, {.endpoint = place, .config_fingerprint = other.config_fingerprint, .deadline = 60s});
  } catch (const Error& error) {
    told = error.what();
  }
  stop.request();
  return told;
}

TEST(Rendezvous, MachinesThatDoNotComeAreNamed) {
  const auto ends = meet_and_sum(
      {{.spec = {.node = 0, .nodes = 4, .count = 1}, .deadline = 1s}, {.spec = {.node = 2, .nodes = 4, .count = 1}, .deadline = 3s}});
  EXPECT_THAT(ends[0], HasSubstr("did not come to 127.0.0.1:"));
  EXPECT_THAT(ends[0], HasSubstr("1, "));
  EXPECT_THAT(ends[0], HasSubstr("3"));
  EXPECT_THAT(ends[1], testing::AnyOf(HasSubstr("gave up"), HasSubstr("nobody answered")));  // (the latter where this machine is very slow)
}

TEST(Rendezvous, WithoutAFirstMachineTheOthersSaySoAndWhatTheyTried) {
  const auto ends = meet_and_sum({{.spec = {.node = 1, .nodes = 2, .count = 1}, .deadline = 500ms}});
  EXPECT_THAT(ends[0], HasSubstr("nobody answered at 127.0.0.1:"));
  EXPECT_THAT(ends[0], HasSubstr(" calls: Connection refused ("));
}

// Hangs up on three callers: at once, after their first bytes, and after their introduction.
void hang_up_three_times(const RendezvousEndpoint& place) {
  const Listener listener = listen_at(place.host, place.port);
  const Tls tls(key_of(1));
  for (int visit = 0; visit < 3; ++visit) {
    const int fd = ::accept(listener.fd, nullptr, nullptr);
    ASSERT_GE(fd, 0);
    char bytes[100];
    if (visit == 1) {
      EXPECT_GT(::recv(fd, bytes, sizeof bytes, 0), 0);
    }
    asio::io_context io(1);
    AsyncStream stream(asio::ip::tcp::socket(io, asio::ip::tcp::v4(), fd));
    const auto serve = [&]() -> asio::awaitable<void> {
      co_await stream.begin(&tls, Tls::Side::server);
      EXPECT_THAT(co_await stream.read_text(10000), HasSubstr("the recipe"));
    };
    if (visit == 2) asio::co_spawn(io, serve, asio::detached);
    io.run();
  }
  ::close(listener.fd);
}

TEST(Rendezvous, AVisitIsRepeatedWhereverTheConnectionBreaks) {
  const RendezvousEndpoint place = free_endpoint();
  const RendezvousOptions options{.endpoint = place, .config_fingerprint = "the recipe", .deadline = 10s};
  const Tls tls(key_of(1));
  std::vector<NetSetup> met;
  {
    const std::jthread caller([&] { EXPECT_NO_THROW(met = rendezvous_nodes({.node = 1, .nodes = 2}, tls, options)); });
    hang_up_three_times(place);
    EXPECT_EQ(rendezvous_nodes({.node = 0, .nodes = 2}, tls, options).size(), 1u);
  }
  ASSERT_EQ(met.size(), 1u);
  EXPECT_EQ(met[0].rank, 1);
  EXPECT_EQ(met[0].size, 2);
}

TEST(Rendezvous, AFirstMachineThatIsStoppedTellsTheOthers) {
  const RendezvousEndpoint place = free_endpoint();
  base::Stop stop;
  const Tls tls(key_of(1));
  const std::jthread first([&] {
    const auto come = [&](const std::string& what) {
      if (what.find("machine 1 is here") != std::string::npos) stop.request();
    };
    EXPECT_THROW(rendezvous_nodes({.node = 0, .nodes = 3}, tls, {.endpoint = place, .deadline = 60s, .tell = come, .stop = &stop}), Error);
  });
  try {
    rendezvous_nodes({.node = 1, .nodes = 3}, tls, {.endpoint = place, .deadline = 60s});
    ADD_FAILURE() << "met all";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::cancelled);
    EXPECT_THAT(error.what(), HasSubstr("the first machine gave up: stopped while waiting for machine 2"));
  }
}

TEST(CallAttempts, WaitLongerEachTimeWithinTheirBounds) {
  CallAttempts attempts(1, 100ms, 1000ms), others(2, 100ms, 1000ms);
  double expected = 0.1;
  bool same = true;
  for (int call = 0; call < 20; ++call) {
    const auto pause = attempts.failed(call < 3 ? "refused" : "closed");
    same = same && pause == others.failed("refused");
    EXPECT_GE(std::chrono::duration<double>(pause).count(), 0.5 * expected - 1e-9);
    EXPECT_LE(std::chrono::duration<double>(pause).count(), 1.5 * expected + 1e-9);
    expected = std::min(1.0, expected * 1.5);
  }
  EXPECT_FALSE(same);
  EXPECT_EQ(attempts.summary(), "20 calls: closed (17), refused (3)");
}

// --- where a machine listens -------------------------------------------------------------------------------------------------------------

std::vector<std::string> own_addresses() {
  std::vector<std::string> all;
  ifaddrs* first = nullptr;
  EXPECT_EQ(::getifaddrs(&first), 0);
  for (const ifaddrs* one = first; one; one = one->ifa_next) {
    char text[INET_ADDRSTRLEN] = {};
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    all.push_back(text);
  }
  ::freeifaddrs(first);
  return all;
}

TEST(Listen, AtTheNamedAddressOfThisMachine) {
  EXPECT_EQ(address_to_listen("127.0.0.1", 1), "127.0.0.1");
  EXPECT_EQ(address_to_listen("127.0.0.2", 1), "127.0.0.2");
  EXPECT_EQ(address_to_listen("0.0.0.0", 1), "0.0.0.0");  // as the user wishes
  for (const std::string& own : own_addresses()) EXPECT_EQ(address_to_listen(own, 29400), own);
}

TEST(Listen, NearTheNamedAddressOfAnotherMachineAndNeverAtAllAddresses) {
  try {
    const std::string address = address_to_listen("192.0.2.1", 29400);  // a documentation address: nobody has it
    EXPECT_THAT(own_addresses(), testing::Contains(address));
  } catch (const Error& error) {  // without a network
    EXPECT_THAT(error.what(), HasSubstr("192.0.2.1: this machine has no way there"));
  }
}

TEST(Rendezvous, AnotherKeyIsRefusedAtOnce) {
  EXPECT_THAT(told_to({.spec = {.node = 1, .nodes = 2}, .key = key_of(2)}), HasSubstr("same key"));
}

TEST(Rendezvous, WhatDiffersIsRefusedWithTheDifference) {
  EXPECT_THAT(told_to({.spec = {.node = 1, .nodes = 2}, .config_fingerprint = "another recipe"}),
              HasSubstr("`the recipe` on machine 0, `another recipe` there"));
  EXPECT_THAT(told_to({.spec = {.node = 1, .nodes = 3}}), HasSubstr("--nnodes = 3: the first machine was started with --nnodes = 2"));
  EXPECT_THAT(told_to({.spec = {.node = 2, .nodes = 2}}), HasSubstr("machine 2 (--node-rank) of 2"));
}

TEST(Rendezvous, AWishToStopEndsTheWait) {
  base::Stop stop;
  std::jthread asks([&] { stop.request(2); });
  const Tls tls(key_of(1));
  try {
    rendezvous_nodes({.node = 0, .nodes = 2}, tls, {.endpoint = free_endpoint(), .stop = &stop});
    ADD_FAILURE() << "met nobody";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("stopped while waiting for machine 1"));
  }
}

TEST(Rendezvous, EndpointsAreHostAndPort) {
  EXPECT_EQ(parse_rendezvous_endpoint("node1:29400").host, "node1");
  EXPECT_EQ(parse_rendezvous_endpoint("[fd00::1]:29400").host, "fd00::1");
  EXPECT_EQ(parse_rendezvous_endpoint("10.0.0.1:29400").port, 29400);
  for (const char* bad : {"", "host", ":1", "host:", "host:0", "host:70000", "host:12x"})
    EXPECT_THROW(parse_rendezvous_endpoint(bad), Error) << bad;
}

}  // namespace
}  // namespace cairn::comm
