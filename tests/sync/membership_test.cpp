// How an island that joins waits for another one.
#include "sync/islands/membership.h"

#include <atomic>
#include <thread>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/bridge/bridge.h"
#include "comm/local/local.h"
#include "comm/net/key.h"
#include "comm/world.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// The first rank of an island, without a model.
struct BareIsland {
  BareIsland(comm::World& world, const comm::BridgeOptions& options, int founders, std::chrono::nanoseconds answer_limit)
      : bridge(options),
        messenger({remote_link(bridge, world), /*signature=*/1, /*max_message_bytes=*/1 << 20}),
        quorum(messenger, {.timeout = 5s, .minority_timeout = 5s, .founded = false, .decisions = {.first_members = {0}, .votes = false}}),
        membership({.messenger = messenger,
                    .quorum = quorum,
                    .log = world.log(),
                    .founders = founders,
                    .founders_limit = 3 * answer_limit,
                    .answer_limit = answer_limit}) {}
  comm::Bridge bridge;
  IslandMessenger messenger;
  Quorum quorum;
  IslandMembership membership;
  IslandMembership::State state{{at::zeros({3})}, {at::zeros({3})}};
};

// The sponsor founds a run, hears the newcomer's request, and answers nothing more, though its bridge lives.
TEST(Membership, ANewcomerDoesNotWaitForEverForAnIslandThatStandsStill) {
  const comm::Key key = comm::fresh_key();
  std::atomic<int> port = 0;
  std::atomic<bool> over = false;
  std::thread sponsor([&] {
    comm::LocalNetwork(1).run([&](comm::World& world) {
      BareIsland island(world, {.site = 0, .sites = 2, .key = key}, 1, 30min);
      island.membership.enter(0, island.state, [] { return true; });
      port = island.bridge.port();
      port.notify_all();
      while (!over && !island.membership.has_join_requests()) {
        island.membership.poll();
        island.bridge.wait(5ms);
      }
      over.wait(false);
    });
  });
  port.wait(0);
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    comm::BridgeOptions options{.site = 1, .sites = 2, .key = key};
    options.endpoints = {{"127.0.0.1", static_cast<uint16_t>(port.load())}};
    BareIsland island(world, options, 2, 300ms);
    island.membership.enter(0, island.state, [] { return true; });
  });
  over = true;
  over.notify_all();
  sponsor.join();
  ASSERT_TRUE(ended.front());
  try {
    std::rethrow_exception(ended.front());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("though it can be reached: it stands still"));
  }
}

}  // namespace
}  // namespace cairn::sync
