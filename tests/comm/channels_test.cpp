// Several connections per pair of ranks, on sockets: two loopback addresses stand for two interfaces of each machine.
#include <arpa/inet.h>
#include <atomic>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/net/channel_plan.h"
#include "comm/net/interfaces.h"
#include "comm/net/setup.h"
#include "comm/net/transport.h"
#include "comm/world.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr Label kX{Purpose::data, "x"};
const std::vector<std::string> kTwo{"127.0.0.1", "127.0.0.2"};

void on_machines(std::vector<NetSetup> setups, const NetOptions& options, const std::function<void(World&)>& body) {
  std::vector<std::jthread> threads;
  for (const NetSetup& setup : setups) {
    threads.emplace_back([&, setup] {
      World world(make_net_transport(setup, options), {.deadline = 60s});
      body(world);
    });
  }
}

void expect_sums(World& world, const std::vector<int64_t>& counts) {
  const int size = world.size();
  for (const int64_t count : counts) {
    std::vector<float> x(static_cast<size_t>(count), static_cast<float>(world.rank() + 1));
    world.everyone().all_reduce({x.data(), count, Dtype::f32}, Reduce::sum, kX).wait();
    for (const float value : x) ASSERT_EQ(value, static_cast<float>(size * (size + 1) / 2));
  }
}

// Bytes that this rank sent to others on an interface.
int64_t sent_on(World& world, int plane) {
  int64_t bytes = 0;
  for (const auto& [which, one] : world.ledger().channels())
    if (one.plane == plane) bytes += one.bytes;
  return bytes;
}

// Shuts down the connected sockets of this process that use this local address: the interface is gone.
int unplug(const char* address) {
  int count = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in own{}, peer{};
    socklen_t length = sizeof own, peer_length = sizeof peer;
    int type = 0;
    socklen_t type_length = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) != 0 || type != SOCK_STREAM) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 || own.sin_family != AF_INET) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) continue;
    char text[INET_ADDRSTRLEN];
    if (std::string(::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text)) != address) continue;
    ::shutdown(fd, SHUT_RDWR);
    ++count;
  }
  return count;
}

TEST(Channels, SumsAreTheSameOverOneToFourConnections) {
  for (const int channels : {1, 2, 3, 4}) {
    for (const std::vector<std::string>& interfaces : {std::vector<std::string>{"127.0.0.1"}, kTwo}) {
      on_machines(make_net_setups({0, 1, 1}, interfaces), {.channels = channels}, [&](World& world) {
        expect_sums(world, {1, 2, 7, 4099, 70'001, 1'000'003});
        world.everyone().barrier().wait();
        const Ledger& ledger = world.ledger();
        const size_t far = world.rank() == 0 ? 2 : 1;
        EXPECT_EQ(ledger.channels().size(), channels == 1 ? 0 : far * static_cast<size_t>(channels));
        if (channels == 1) return;
        int64_t bytes = 0, to_others = 0;
        for (const auto& [which, one] : ledger.channels()) {
          bytes += one.bytes;
          EXPECT_EQ(one.lost_because, "");
        }
        for (int peer = 0; peer < 3; ++peer)
          for (int p = 0; p < kPurposes; ++p)
            if ((peer == 0) != (world.rank() == 0)) to_others += ledger.between(world.rank(), peer, static_cast<Purpose>(p)).bytes;
        EXPECT_GE(bytes, to_others);  // what is under way is booked later
        EXPECT_LE(bytes, to_others + 100'000);
        if (interfaces.size() == 2) {
          EXPECT_GT(sent_on(world, 1), 0);
        }
      });
    }
  }
}

TEST(Channels, AnInterfaceThatGoesMidwayCostsNothingButTime) {
  std::atomic<int> cut = 0;
  on_machines(make_net_setups({0, 1}, kTwo), {.channels = 3}, [&](World& world) {
    for (int round = 0; round < 30; ++round) {
      std::vector<float> x(400'003, static_cast<float>(world.rank() + round));
      const Work work = world.everyone().all_reduce({x.data(), 400'003, Dtype::f32}, Reduce::sum, kX);
      if (round == 10 && world.rank() == 0) cut = unplug("127.0.0.2");
      work.wait();
      for (const float value : x) ASSERT_EQ(value, static_cast<float>(2 * round + 1));
    }
    int lost = 0;
    for (const auto& [which, one] : world.ledger().channels()) lost += one.lost_because.empty() ? 0 : 1;
    EXPECT_GE(lost, 1);
    EXPECT_LE(lost, 2);
    EXPECT_THAT(world.ledger().json(), HasSubstr("\"lost\": true"));
  });
  EXPECT_GE(cut, 1);  // the other end may be closed already
}

TEST(Channels, WithoutAnyInterfaceThePeerIsLostAsEver) {
  on_machines(make_net_setups({0, 1}, kTwo), {.channels = 2}, [&](World& world) {
    expect_sums(world, {1000});
    std::vector<float> x(1'000'000);
    try {
      for (int round = 0; round < 200; ++round) {
        const Work work = world.everyone().all_reduce({x.data(), 1'000'000, Dtype::f32}, Reduce::sum, kX);
        if (round == 3 && world.rank() == 0) {
          unplug("127.0.0.2");
          unplug("127.0.0.1");
        }
        work.wait();
      }
      ADD_FAILURE() << "nobody was lost";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    }
  });
}

TEST(Channels, APlaneThatSwallowsEverythingIsGivenUp) {
  NetOptions options{.channels = 2, .channel_stall = 500ms};
  options.links = LinkModel{.latency = 1ms, .jitter = 0, .contention = LinkModel::Contention::per_nic, .planes = {50e6, 50e6}};
  options.links->plane_changes = {{.plane = 1, .after = 1s, .factor = 0}};
  on_machines(make_net_setups({0, 1}), options, [&](World& world) {
    const base::RealClock clock;
    int lost = 0;
    for (int round = 0; lost == 0 && clock.now() < 30s; ++round) {
      expect_sums(world, {300'007});
      for (const auto& [which, one] : world.ledger().channels()) lost += one.lost_because.empty() ? 0 : 1;
      float stop = static_cast<float>(lost);
      world.everyone().all_reduce({&stop, 1, Dtype::f32}, Reduce::sum, kX).wait();
      lost = static_cast<int>(stop);
    }
    EXPECT_GE(lost, 1);
    expect_sums(world, {300'007});
  });
}

TEST(Channels, AnInterfaceThatLeadsNowhereIsReplacedByTheFirst) {
  std::vector<NetSetup> setups = make_net_setups({0, 1}, kTwo);
  for (NetSetup& setup : setups)
    for (RankAddress& address : setup.addresses) address.more_interfaces[0].port = 9;  // nobody is there
  on_machines(setups, {.channels = 2}, [&](World& world) {
    expect_sums(world, {70'001});
    EXPECT_EQ(world.ledger().channels().size(), 2u);
    EXPECT_EQ(sent_on(world, 1), 0);
  });
}

TEST(Channels, BothEndsMustAgreeOnTheirNumber) {
  std::vector<NetSetup> setups = make_net_setups({0, 1});
  std::vector<std::string> said(2);
  {
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        try {
          make_net_transport(setups[static_cast<size_t>(rank)], {.connect_deadline = 5s, .channels = rank + 1});
        } catch (const Error& error) {
          said[static_cast<size_t>(rank)] = error.what();
        }
      });
  }
  EXPECT_THAT(said[0], HasSubstr("it has 2 channels to this rank, and this rank 1 to it: --channels must be the same on all machines"));
}

TEST(Channels, InterfacesAreAddressesOfThisMachine) {
  const auto refusal = [](const char* text) {
    try {
      interface_addresses(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(interface_addresses("127.0.0.2,127.0.0.1"), (std::vector<std::string>{"127.0.0.2", "127.0.0.1"}));
  EXPECT_THAT(refusal("127.0.0.1,eth0"), HasSubstr("\"eth0\" is no address"));
  EXPECT_THAT(refusal(""), HasSubstr("\"\" is no address"));
  EXPECT_THAT(refusal("127.0.0.1,127.0.0.1"), HasSubstr("127.0.0.1 is there twice"));
  EXPECT_THAT(refusal("192.0.2.1"), HasSubstr("192.0.2.1 is not an address of this machine"));
  for (const std::string& one : interface_addresses("auto")) EXPECT_FALSE(one.starts_with("127."));
}

TEST(Channels, PairsThatShareAPortAreSpreadOverThePlanes) {
  const std::vector<NetSetup> setups = make_net_setups({0, 1, 2, 3, 4}, kTwo);
  for (const int channels : {1, 2, 3}) {
    NetOptions options{.channels = channels};
    for (const NetSetup& setup : setups) {
      const ChannelPlan plan(setup, options);
      std::vector<int> load(2);
      for (int other = 0; other < 5; ++other) {
        if (other == setup.rank) continue;
        EXPECT_EQ(plan.channels(other), channels);
        for (int channel = 0; channel < channels; ++channel) {
          ++load[static_cast<size_t>(plan.plane(other, channel))];
          const ChannelPlan theirs(setups[static_cast<size_t>(other)], options);
          EXPECT_EQ(plan.plane(other, channel), theirs.plane(setup.rank, channel));  // both ends agree
        }
      }
      EXPECT_LE(std::abs(load[0] - load[1]), 2) << "rank " << setup.rank << ", " << channels << " channels";
    }
  }
  for (const NetSetup& setup : setups)
    for (const int fd : setup.fds())
      if (fd >= 0) ::close(fd);
}

TEST(Channels, ASetUpWithInterfacesSurvivesItsTripToTheRank) {
  const std::vector<NetSetup> setups = make_net_setups({0, 1}, kTwo);
  const NetSetup back = setup_from_bytes(to_bytes(setups[1]));
  EXPECT_EQ(back.fds(), setups[1].fds());
  EXPECT_EQ(back.interface_fds.size(), 2u);
  ASSERT_EQ(back.addresses[0].more_interfaces.size(), 1u);
  EXPECT_EQ(back.addresses[0].more_interfaces[0].host, "127.0.0.2");
  EXPECT_EQ(back.addresses[0].more_interfaces[0].port, setups[0].addresses[0].more_interfaces[0].port);
  const std::string bytes = to_bytes(setups[1]);
  for (size_t cut = 0; cut < bytes.size(); cut += 5) EXPECT_THROW(setup_from_bytes(std::string_view(bytes).substr(0, cut)), Error);
  for (const NetSetup& setup : setups)
    for (const int fd : setup.fds())
      if (fd >= 0) ::close(fd);
}

}  // namespace
}  // namespace cairn::comm
