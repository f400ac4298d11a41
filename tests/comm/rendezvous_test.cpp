// Machines that find each other: threads that each play one, over loopback.
#include "comm/rendezvous/rendezvous.h"

#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
          auto setups =
              rendezvous_nodes(machines[i].spec, tls,
                               {.endpoint = place, .config_fingerprint = machines[i].config_fingerprint, .deadline = machines[i].deadline});
          std::vector<std::jthread> ranks;
          for (NetSetup& setup : setups) {
            ranks.emplace_back([&, setup] {
              World world(make_net_transport(setup), {.deadline = 10s});
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

TEST(Rendezvous, WithoutAFirstMachineTheOthersSaySo) {
  const auto ends = meet_and_sum({{.spec = {.node = 1, .nodes = 2, .count = 1}, .deadline = 500ms}});
  EXPECT_THAT(ends[0], HasSubstr("nobody answered at 127.0.0.1:"));
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
