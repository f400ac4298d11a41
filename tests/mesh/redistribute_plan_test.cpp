#include "mesh/redistribute_plan.h"

#include "mesh/redistribute_runs.h"

namespace cairn::mesh {
namespace {

std::string plan_text(const std::string& mesh, const std::string& from, const std::string& to) {
  return RedistributePlan({layout(mesh, from), layout(mesh, to), {8, 8}}).describe();
}

TEST(RedistributePlan, PicksTheCollectiveOfTheTable) {
  EXPECT_EQ(plan_text("dp=4", "dp: split(0)", "replicated"), "all_gather of 4 ranks, 192 elements sent");
  EXPECT_EQ(plan_text("dp=4", "dp: partial(sum)", "dp: split(1)"), "reduce_scatter of 4 ranks, 192 elements sent");
  EXPECT_EQ(plan_text("dp=4", "dp: partial(sum)", "replicated"), "all_reduce of 4 ranks, 384 elements sent");
  EXPECT_EQ(plan_text("dp=4", "dp: split(0)", "dp: split(1)"), "all_to_all of 4 ranks, 48 elements sent");
  for (const auto& [from, to] : {std::pair{"replicated", "dp: split(0)"},
                                 {"replicated", "dp: partial(sum)"},
                                 {"dp: split(1)", "dp: partial(sum)"},
                                 {"dp: partial(sum)", "dp: partial(sum)"},
                                 {"replicated", "dp: partial(max)"}})
    EXPECT_EQ(plan_text("dp=4", from, to), "nothing is sent") << from << " " << to;
}

TEST(RedistributePlan, PicksOneCollectivePerGroupOnTwoAxes) {
  EXPECT_EQ(plan_text("dp=2,tp=4", "dp: partial(sum), tp: split(0)", "tp: split(0)"), "4 x all_reduce of 2 ranks, 32 elements sent");
  EXPECT_EQ(plan_text("dp=2,tp=4", "dp: split(0), tp: split(1)", "dp: split(0)"), "2 x all_gather of 4 ranks, 96 elements sent");
  EXPECT_EQ(plan_text("dp=2,tp=4", "dp: split(0), tp: split(0)", "replicated"), "all_gather of 8 ranks, 448 elements sent");
  EXPECT_EQ(plan_text("dp=2,tp=4", "dp: partial(sum), tp: partial(sum)", "replicated"), "all_reduce of 8 ranks, 896 elements sent");
  EXPECT_EQ(plan_text("dp=2,tp=2", "dp: partial(sum), tp: split(0)", "replicated"),
            "2 x reduce_scatter of 2 ranks, 32 elements sent, then all_gather of 4 ranks, 192 elements sent");
}

TEST(RedistributePlan, SpreadsTheLoadOverReplicas) {
  const RedistributePlan plan({layout("dp=4", "replicated"), layout("dp=4 on [4-7]", "dp: split(0)"), {8, 8}});
  EXPECT_EQ(plan.cost(), (RedistributeCost{64, 16, 16, 1}));  // each source serves one receiver
  const RedistributePlan reduce({layout("dp=4", "dp: partial(sum)"), layout("dp=4 on [4-7]", "replicated"), {8, 8}});
  EXPECT_EQ(reduce.cost(), (RedistributeCost{64 * 7, 64, 64 + 48, 2}));
}

TEST(RedistributePlan, CountsWhatEachPairExchanges) {
  const RedistributePlan plan({layout("dp=2", "dp: split(0, 0:3|3:4)"), layout("dp=2", "dp: split(0)"), {4, 5}});
  EXPECT_EQ(plan.traffic(), (std::map<std::pair<int, int>, int64_t>{{{0, 1}, 5}}));
}

TEST(RedistributePlan, StaysInsideReplicas) {
  // Two islands with a copy each: no byte crosses between them.
  const RedistributePlan plan({layout("island=2,tp=3", "tp: split(0)"), layout("island=2,tp=3", "tp: split(1)"), {7, 5}});
  for (const auto& [pair, elements] : plan.traffic()) EXPECT_EQ(pair.first / 3, pair.second / 3);
}

TEST(RedistributePlan, ServesUnequalParts) {
  const std::string mesh = "island=(tp=3|tp=2)";
  const std::vector<Layout> layouts{layout(mesh, "tp: split(0)"),     layout(mesh, "tp: split(1)"),
                                    layout(mesh, "tp: partial(sum)"), layout(mesh, "island: split(0), tp: split(1)"),
                                    layout(mesh, "island: split(1)"), layout(mesh, "replicated")};
  std::vector<RedistributePlan> plans;
  for (const Layout& from : layouts)
    for (const Layout& to : layouts) plans.emplace_back(LayoutChange{from, to, {7, 5}});
  const std::vector<Moved> moved = move_all(5, plans, std::vector<at::Tensor>(plans.size(), numbers({7, 5})));
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_TRUE(at::equal(moved[i].logical, numbers({7, 5}))) << to_string(plans[i].change());
}

TEST(RedistributePlan, MovesFromOnePipelineStageToAnotherOfAnotherSize) {
  const Moved moved = move_one(6, {layout("tp=4", "tp: split(1)"), layout("tp=2 on [4-5]", "tp: split(1)"), {3, 10}});
  EXPECT_TRUE(at::equal(moved.logical, numbers({3, 10})));
  EXPECT_EQ(moved.bytes, 3 * 10 * 4);
}

TEST(RedistributePlan, IsRefusedWhereThePlacementDoesNotFit) {
  EXPECT_THROW(RedistributePlan({layout("dp=2", "dp: split(2)"), layout("dp=2", "replicated"), {4, 4}}), Error);
  EXPECT_THROW(RedistributePlan({layout("dp=2", "replicated"), {Mesh{{{"dp", 2}}, {0}, {}}, {}}, {4, 4}}), Error);
}

TEST(RedistributePlanCache, PlansEachChangeOnceAndForgetsTheOldest) {
  RedistributePlanCache cache(2);
  const auto change = [](int64_t rows) { return LayoutChange{layout("dp=2", "dp: split(0)"), layout("dp=2", "replicated"), {rows, 2}}; };
  const auto first = cache.get(change(4));
  EXPECT_EQ(cache.get(change(4)), first);
  (void)cache.get(change(5));
  EXPECT_EQ(cache.get(change(4)), first);
  (void)cache.get(change(6));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_NE(cache.get(change(4)), first);
}

TEST(RedistributePlanCache, PlansFor256RanksQuickly) {
  const RedistributePlan gather({layout("dp=16,tp=16", "dp: split(0), tp: split(1)"), layout("dp=16,tp=16", "tp: split(1)"), {1024, 1024}});
  EXPECT_EQ(gather.describe(), "16 x all_gather of 16 ranks, 983040 elements sent");
  const RedistributePlan all({layout("dp=16,tp=16", "dp: split(0), tp: split(0)"), layout("dp=16,tp=16", "dp: split(1)"), {512, 512}});
  EXPECT_EQ(all.cost().elements, 256 * (512 * 32 - 2 * 32));
}

}  // namespace
}  // namespace cairn::mesh
