#include "comm/clos_fabric.h"

#include <cmath>

#include <gtest/gtest.h>

namespace cairn::comm {
namespace {

TEST(ClosFabric, RatesAreMaxMinFair) {
  // Links of 1: A and B share link 0, B and C link 1, which has 3. C gets what B leaves.
  const std::vector<FluidFlow> flows{{1, {{0}}}, {1, {{0, 1}}}, {5, {{1}}}};
  const std::vector<double> ends = fluid_end_times({1, 3}, flows);
  EXPECT_NEAR(ends[0], 2, 1e-9);  // half of link 0 each
  EXPECT_NEAR(ends[1], 2, 1e-9);
  EXPECT_NEAR(ends[2], 2, 1e-9);  // 2.5 of link 1 until then: 5 bytes
}

TEST(ClosFabric, ChannelsOfAFlowPoolTheirLinks) {
  EXPECT_NEAR(fluid_end_times({1, 0.3}, {{13, {{0}, {1}}}})[0], 10, 1e-9);
  EXPECT_NEAR(fluid_end_times({1, 0}, {{13, {{0}, {1}}}})[0], 13, 1e-9);
  EXPECT_TRUE(std::isinf(fluid_end_times({0}, {{13, {{0}}}})[0]));
}

TEST(ClosFabric, EveryPathLeadsThroughItsSpineAndHashesAvoidLinksThatAreDown) {
  ClosFabric fabric(3, 4, 2);
  EXPECT_EQ(fabric.paths(0, 1).size(), 1u);  // one leaf
  const auto paths = fabric.paths(0, 5);
  ASSERT_EQ(paths.size(), 4u);
  for (int spine = 0; spine < 4; ++spine) {
    EXPECT_EQ(paths[static_cast<size_t>(spine)][1], fabric.up(0, spine));
    EXPECT_EQ(paths[static_cast<size_t>(spine)][2], fabric.down(spine, 2));
  }
  fabric.set_capacity(fabric.up(0, 1), 0);
  for (uint64_t seed = 0; seed < 100; ++seed) EXPECT_NE(fabric.hashed(seed, 0, 0, 5), 1);
}

TEST(ClosFabric, ThePlannerGivesEveryFlowItsOwnSpine) {
  const ClosFabric fabric(2, 8, 8);
  PathPlanner planner = fabric.planner();
  std::vector<int> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(planner.add_flow(1, fabric.paths(i, 8 + i)));
  planner.plan({});
  std::vector<FluidFlow> flows;
  for (int i = 0; i < 8; ++i)
    flows.push_back({1, {fabric.paths(i, 8 + i)[static_cast<size_t>(planner.paths_of(ids[static_cast<size_t>(i)])[0])]}});
  for (const double end : fluid_end_times(fabric.capacities(), flows)) EXPECT_NEAR(end, 1, 1e-9);
}

}  // namespace
}  // namespace cairn::comm
