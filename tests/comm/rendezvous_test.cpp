// Machines that find each other: threads that each play one, over loopback.
#include "comm/rendezvous.h"

#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net_listen.h"
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

MeetingPlace free_place() {
  const Listener listener = listen_at("127.0.0.1");
  ::close(listener.fd);
  return {"127.0.0.1", listener.port};
}

struct Machine {
  Party party;
  Key key = key_of(1);
  std::string alike = "the recipe";
  std::chrono::nanoseconds deadline = 10s;
};

// Lets every machine come to one place; then all ranks sum their numbers. What became of each machine: "" or its error.
std::vector<std::string> meet_and_sum(const std::vector<Machine>& machines, std::vector<int>* ranks_seen = nullptr) {
  std::vector<std::string> ends(machines.size());
  const MeetingPlace place = free_place();
  std::mutex lock;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < machines.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          const Tls tls(machines[i].key);
          auto setups =
              meet_machines(machines[i].party, tls, {.place = place, .alike = machines[i].alike, .deadline = machines[i].deadline});
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
  const auto ends = meet_and_sum({{.party = {.node = 1, .nodes = 3, .count = 1}},
                                  {.party = {.node = 2, .nodes = 3, .count = 3}},
                                  {.party = {.node = 0, .nodes = 3, .count = 2}}},
                                 &ranks);
  EXPECT_THAT(ends, testing::Each(""));
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Rendezvous, RanksThatALauncherNumberedKeepTheirNumbers) {
  std::vector<int> ranks;
  const auto ends =
      meet_and_sum({{.party = {.count = 2, .ranks = {0, 2}, .size = 4}}, {.party = {.count = 2, .ranks = {1, 3}, .size = 4}}}, &ranks);
  EXPECT_THAT(ends, testing::Each(""));
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2, 3));
}

TEST(Rendezvous, MachinesThatDoNotComeAreNamed) {
  const auto ends = meet_and_sum(
      {{.party = {.node = 0, .nodes = 4, .count = 1}, .deadline = 500ms}, {.party = {.node = 2, .nodes = 4, .count = 1}, .deadline = 5s}});
  EXPECT_THAT(ends[0], HasSubstr("machines 1, 3 did not come to 127.0.0.1:"));
  EXPECT_THAT(ends[1], HasSubstr("gave up"));
}

TEST(Rendezvous, WithoutAFirstMachineTheOthersSaySo) {
  const auto ends = meet_and_sum({{.party = {.node = 1, .nodes = 2, .count = 1}, .deadline = 500ms}});
  EXPECT_THAT(ends[0], HasSubstr("nobody answered at 127.0.0.1:"));
}

TEST(Rendezvous, AnotherKeyIsRefusedAtOnceAndTheOthersStillMeet) {
  const auto ends = meet_and_sum({{.party = {.node = 0, .nodes = 2, .count = 1}},
                                  {.party = {.node = 1, .nodes = 2, .count = 1}, .key = key_of(2)},
                                  {.party = {.node = 1, .nodes = 2, .count = 1}}});
  EXPECT_EQ(ends[0], "");
  EXPECT_THAT(ends[1], HasSubstr("same key"));
  EXPECT_EQ(ends[2], "");
}

TEST(Rendezvous, WhatDiffersIsRefusedWithTheDifference) {
  const auto ends = meet_and_sum({{.party = {.node = 0, .nodes = 2, .count = 1}, .deadline = 400ms},
                                  {.party = {.node = 1, .nodes = 2, .count = 1}, .alike = "another recipe"}});
  EXPECT_THAT(ends[1], HasSubstr("`the recipe` on machine 0, `another recipe` there"));
  const auto counts =
      meet_and_sum({{.party = {.node = 0, .nodes = 2, .count = 1}, .deadline = 400ms}, {.party = {.node = 1, .nodes = 3, .count = 1}}});
  EXPECT_THAT(counts[1], HasSubstr("told of 3 machines (--nnodes), the first one of 2"));
  const auto numbers =
      meet_and_sum({{.party = {.node = 0, .nodes = 2, .count = 1}, .deadline = 400ms}, {.party = {.node = 2, .nodes = 2, .count = 1}}});
  EXPECT_THAT(numbers[1], HasSubstr("machine 2 (--node-rank) of 2"));
}

TEST(Rendezvous, AWishToStopEndsTheWait) {
  base::Stop stop;
  std::jthread asks([&] { stop.request(2); });
  const Tls tls(key_of(1));
  try {
    meet_machines({.node = 0, .nodes = 2}, tls, {.place = free_place(), .stop = &stop});
    ADD_FAILURE() << "met nobody";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("stopped while waiting for machine 1"));
  }
}

TEST(Rendezvous, PlacesAreHostAndPort) {
  EXPECT_EQ(parse_meeting_place("node1:29400").host, "node1");
  EXPECT_EQ(parse_meeting_place("[fd00::1]:29400").host, "fd00::1");
  EXPECT_EQ(parse_meeting_place("10.0.0.1:29400").port, 29400);
  for (const char* bad : {"", "host", ":1", "host:", "host:0", "host:70000", "host:12x"})
    EXPECT_THROW(parse_meeting_place(bad), Error) << bad;
}

}  // namespace
}  // namespace cairn::comm
