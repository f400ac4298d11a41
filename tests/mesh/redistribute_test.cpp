#include "mesh/redistribute.h"

#include <functional>
#include <map>

#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include "mesh/redistribute_runs.h"
#include "mesh/splits.h"

namespace cairn::mesh {
namespace {

const std::vector<std::string> kKinds{"split(0)", "split(1)", "replicate", "partial(sum)"};

std::vector<Layout> layouts_1d(int ranks) {
  std::vector<Layout> all;
  for (const std::string& kind : kKinds) all.push_back(layout(fmt::format("dp={}", ranks), "dp: " + kind));
  return all;
}

std::vector<Layout> layouts_2d(const std::string& mesh) {
  std::vector<Layout> all;
  for (const std::string& outer : kKinds)
    for (const std::string& inner : kKinds) all.push_back(layout(mesh, fmt::format("dp: {}, tp: {}", outer, inner)));
  return all;
}

std::vector<RedistributePlan> all_pairs(const std::vector<Layout>& layouts, const std::vector<int64_t>& shape) {
  std::vector<RedistributePlan> plans;
  for (const Layout& from : layouts)
    for (const Layout& to : layouts) plans.emplace_back(LayoutChange{from, to, shape});
  return plans;
}

// Every pair keeps the logical value (whole numbers: sums are exact as well) and sends no byte more than the index sets need.
void expect_all_pairs(int ranks, const std::vector<Layout>& layouts, const std::vector<int64_t>& shape) {
  const std::vector<RedistributePlan> plans = all_pairs(layouts, shape);
  const std::vector<Moved> moved = move_all(ranks, plans, std::vector<at::Tensor>(plans.size(), numbers(shape)));
  std::vector<brute::Census> census;
  for (const Layout& one : layouts) census.emplace_back(one, shape);
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::string which = to_string(plans[i].change());
    EXPECT_TRUE(at::equal(moved[i].logical, numbers(shape))) << which;
    EXPECT_EQ(moved[i].bytes, 4 * brute::least_elements(census[i / layouts.size()], census[i % layouts.size()])) << which;
    EXPECT_EQ(moved[i].bytes, 4 * plans[i].cost().elements) << which;
  }
}

TEST(Redistribute, KeepsTheValueForEveryPairOn4And6Ranks) {
  for (int ranks : {4, 6})
    for (const auto& shape : {std::vector<int64_t>{7, 5}, {12, 24}}) expect_all_pairs(ranks, layouts_1d(ranks), shape);
}

TEST(Redistribute, KeepsTheValueForEveryPairOn2By2Ranks) { expect_all_pairs(4, layouts_2d("dp=2,tp=2"), {7, 5}); }

TEST(Redistribute, KeepsTheValueForEveryPairOn2By3Ranks) { expect_all_pairs(6, layouts_2d("dp=2,tp=3"), {7, 5}); }

TEST(Redistribute, KeepsTheValueForEveryPairOnAPermutedMesh) { expect_all_pairs(6, layouts_2d("dp=2,tp=3 on [4,1,5,0,3,2]"), {7, 5}); }

TEST(Redistribute, SumsAreBitwiseIdenticalWhateverTheCollective) {
  // Fractions: terms of value/3 round, so the order counts. All-reduce, reduce-scatter then gather, and pairwise sums agree in every bit.
  const std::vector<int64_t> shape{7, 5};
  const at::Tensor values = numbers(shape) / 3;
  const Layout partial = layout("dp=6", "dp: partial(sum)");
  const std::vector<RedistributePlan> plans{RedistributePlan({partial, layout("dp=6", "replicated"), shape}),
                                            RedistributePlan({partial, layout("dp=6", "dp: split(0)"), shape}),
                                            RedistributePlan({partial, layout("dp=6", "dp: split(1, 0:1|1:2|2:3|-|3:4|4:5)"), shape}),
                                            RedistributePlan({partial, layout("dp=2,tp=3", "tp: split(0)"), shape}),
                                            RedistributePlan({partial, layout("tp=2 on [6-7]", "tp: split(0)"), shape})};
  const std::vector<Moved> moved = move_all(8, plans, std::vector<at::Tensor>(plans.size(), values));
  EXPECT_EQ(plans[0].rounds()[0][0].by, CollectiveKind::all_reduce);
  EXPECT_EQ(plans[1].rounds()[0][0].by, CollectiveKind::reduce_scatter);
  EXPECT_EQ(plans[3].rounds().size(), 2u);
  EXPECT_EQ(plans[4].rounds()[0][0].by, CollectiveKind::all_to_all);
  for (const Moved& one : moved) {
    EXPECT_TRUE(at::allclose(one.logical, values, 1e-6, 1e-6));
    EXPECT_TRUE(at::equal(one.logical, moved[0].logical));
  }
}

TEST(Redistribute, SumsInTheOrderOfTheCoordinatesWhateverTheRanks) {
  // 1e8 - 1e8 + 1 is 1 in float; in any other order the 1 is lost.
  const float terms[] = {1e8f, -1e8f, 1.0f};
  for (const char* to : {"dp=3 on [2,0,1]|replicated", "dp=3 on [2,0,1]|dp: split(0)", "dp=2 on [1,3]|dp: split(0)"}) {
    const std::string text(to);
    const Layout after = layout(text.substr(0, text.find('|')), text.substr(text.find('|') + 1));
    harness::on_ranks(4, [&](comm::World& world) {
      const Layout before = layout("dp=3 on [2,0,1]", "dp: partial(sum)");
      const bool holds = before.mesh.contains(world.rank());
      const at::Tensor term = holds ? at::full({6}, terms[before.mesh.coordinate(world.rank(), "dp")], at::kFloat) : at::empty({0});
      const at::Tensor sum = redistribute(world, term, LayoutChange{before, after, {6}}, {});
      EXPECT_TRUE(at::equal(sum, at::ones_like(sum))) << text;
    });
  }
}

// |T| = 12 x 24 floats; totals over all ranks as the table says.
TEST(Redistribute, SendsTheBytesOfTheTableOnTheSameRanks) {
  const std::vector<int64_t> shape{12, 24};
  const double T = 12 * 24 * 4, p = 4;
  const std::map<std::pair<std::string, std::string>, double> table{{{"split(0)", "split(0)"}, 0},
                                                                    {{"split(0)", "split(1)"}, (p - 1) / p * T},
                                                                    {{"split(0)", "replicate"}, (p - 1) * T},
                                                                    {{"split(0)", "partial(sum)"}, 0},
                                                                    {{"replicate", "split(0)"}, 0},
                                                                    {{"replicate", "replicate"}, 0},
                                                                    {{"replicate", "partial(sum)"}, 0},
                                                                    {{"partial(sum)", "split(0)"}, (p - 1) * T},
                                                                    {{"partial(sum)", "replicate"}, 2 * (p - 1) * T},
                                                                    {{"partial(sum)", "partial(sum)"}, 0}};
  for (const auto& [pair, bytes] : table) {
    const LayoutChange change{layout("dp=4", "dp: " + pair.first), layout("dp=4", "dp: " + pair.second), shape};
    EXPECT_NEAR(static_cast<double>(move_one(4, change).bytes), bytes, 0.01 * bytes) << to_string(change);
  }
}

TEST(Redistribute, SendsTheBytesOfTheTableBetweenDisjointRanks) {
  const std::vector<int64_t> shape{12, 24};
  const double T = 12 * 24 * 4, p1 = 4, p2 = 3;
  const std::map<std::pair<std::string, std::string>, double> table{{{"split(0)", "split(0)"}, T},
                                                                    {{"split(0)", "split(1)"}, T},
                                                                    {{"split(0)", "replicate"}, p2 * T},
                                                                    {{"split(0)", "partial(sum)"}, T},
                                                                    {{"replicate", "split(0)"}, T},
                                                                    {{"replicate", "replicate"}, p2 * T},
                                                                    {{"replicate", "partial(sum)"}, T},
                                                                    {{"partial(sum)", "split(0)"}, p1 * T},
                                                                    {{"partial(sum)", "replicate"}, (p1 + p2 - 1) * T},
                                                                    {{"partial(sum)", "partial(sum)"}, p1 * T}};
  for (const auto& [pair, bytes] : table) {
    const LayoutChange change{layout("dp=4 on [6,2,0,4]", "dp: " + pair.first), layout("dp=3 on [1,5,3]", "dp: " + pair.second), shape};
    const Moved moved = move_one(7, change);
    EXPECT_TRUE(at::equal(moved.logical, numbers(shape))) << to_string(change);
    EXPECT_NEAR(static_cast<double>(moved.bytes), bytes, 0.01 * bytes) << to_string(change);
    EXPECT_EQ(moved.results[0].numel(), 0);  // rank 0 gave all away
  }
}

TEST(Redistribute, MovesBetweenMeshesThatOverlap) {
  const std::vector<int64_t> shape{7, 5};
  const std::vector<Layout> here{layout("dp=2,tp=2", "dp: split(0), tp: split(1)"), layout("dp=2,tp=2", "dp: partial(sum), tp: split(0)"),
                                 layout("dp=4 on [3,1,0,2]", "dp: split(1)"), layout("dp=3 on [0-2]", "replicated")};
  const std::vector<Layout> there{layout("dp=3 on [2-4]", "dp: split(0)"), layout("tp=5", "tp: split(1)"),
                                  layout("dp=2 on [4,0]", "replicated"), layout("dp=2,tp=2 on [1-4]", "dp: partial(sum), tp: split(1)")};
  std::vector<RedistributePlan> plans;
  for (const Layout& from : here)
    for (const Layout& to : there) {
      plans.emplace_back(LayoutChange{from, to, shape});
      plans.emplace_back(LayoutChange{to, from, shape});
    }
  const std::vector<Moved> moved = move_all(5, plans, std::vector<at::Tensor>(plans.size(), numbers(shape)));
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_TRUE(at::equal(moved[i].logical, numbers(shape))) << to_string(plans[i].change());
    EXPECT_EQ(moved[i].bytes, 4 * plans[i].cost().elements) << to_string(plans[i].change());
  }
}

TEST(Redistribute, MovesIntervalSplits) {
  const std::vector<int64_t> shape{12, 5};
  const auto on_cp = [](Split split) { return Layout{parse_mesh("cp=3"), {{{"cp", std::move(split)}}}}; };
  const std::vector<Layout> layouts{on_cp(split_zigzag(0, 12, 3)),       on_cp(split_by_counts(0, {1, 11, 0})),
                                    on_cp(split_fused(0, {6, 3, 3}, 3)), on_cp(split_by_counts(1, {0, 2, 3})),
                                    layout("cp=3", "replicated"),        layout("cp=3", "cp: partial(sum)")};
  expect_all_pairs(3, layouts, shape);
}

TEST(Redistribute, NestsSplitsOfOneDimInTheListedOrder) {
  // The inner axis first: what a mesh with tp inside dp needs when tp cuts a weight before dp shards it.
  expect_all_pairs(6,
                   {layout("dp=2,tp=3", "tp: split(0), dp: split(0)"), layout("dp=2,tp=3", "dp: split(0), tp: split(0)"),
                    layout("dp=2,tp=3", "dp: split(1), tp: split(0)"), layout("dp=2,tp=3", "tp: split(0)")},
                   {11, 5});
}

TEST(Redistribute, TakesNoMiddleStepFromSplitSplitToAnother) {
  const RedistributePlan plan(
      {layout("dp=2,tp=2", "dp: split(0), tp: split(0)"), layout("dp=2,tp=2", "dp: split(1), tp: split(0)"), {8, 8}});
  EXPECT_EQ(plan.cost().rounds, 1);
  EXPECT_EQ(plan.rounds()[0][0].by, CollectiveKind::all_to_all);
}

TEST(Redistribute, WorksOnThreeAxes) {
  const std::vector<int64_t> shape{5, 7, 3};
  expect_all_pairs(8,
                   {layout("pp=2,dp=2,tp=2", "pp: split(0), dp: split(1), tp: split(2)"),
                    layout("pp=2,dp=2,tp=2", "pp: partial(sum), dp: split(1), tp: partial(sum)"), layout("pp=2,dp=2,tp=2", "dp: split(1)"),
                    layout("pp=2,dp=2,tp=2", "pp: split(1), dp: split(1), tp: split(1)")},
                   shape);
}

TEST(Redistribute, LeavesEmptyPartsWhereADimIsShorterThanItsAxis) {
  expect_all_pairs(6, layouts_1d(6), {2, 1});
  expect_all_pairs(4, layouts_1d(4), {0, 3});
}

TEST(Redistribute, HandsScalarsAround) {
  const std::vector<Layout> layouts{layout("dp=3", "replicated"), layout("dp=3", "dp: partial(sum)")};
  expect_all_pairs(3, layouts, {});
}

TEST(Redistribute, ReducesMaxima) {
  const std::vector<int64_t> shape{7, 5};
  std::vector<Layout> layouts;
  for (const char* kind : {"split(0)", "replicate", "partial(max)", "partial(sum)"})
    layouts.push_back(layout("dp=4", std::string("dp: ") + kind));
  for (at::ScalarType dtype : {at::kFloat, at::kInt}) {
    const std::vector<RedistributePlan> plans = all_pairs(layouts, shape);
    const std::vector<Moved> moved = move_all(4, plans, std::vector<at::Tensor>(plans.size(), numbers(shape)), {.dtype = dtype});
    for (size_t i = 0; i < plans.size(); ++i) EXPECT_TRUE(at::equal(moved[i].logical, numbers(shape))) << to_string(plans[i].change());
  }
}

TEST(Redistribute, MovesAndSumsAnyDtype) {
  const std::vector<int64_t> shape{5, 3};
  const auto expect = [&](at::ScalarType dtype, const std::string& from, const std::string& to, size_t bytes_each) {
    const LayoutChange change{layout("dp=3", "dp: " + from), layout("dp=3", "dp: " + to), shape};
    const Moved moved = move_one(3, change, {.dtype = dtype});
    EXPECT_TRUE(at::equal(moved.logical, numbers(shape))) << to_string(change) << " " << dtype;
    EXPECT_EQ(moved.bytes, RedistributePlan(change).cost().elements * static_cast<int64_t>(bytes_each))
        << to_string(change) << " " << dtype;
  };
  for (at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort, at::kChar})
    for (const char* to : {"replicate", "split(0)"}) {
      const bool widened = dtype == at::kShort || dtype == at::kChar;
      expect(dtype, "split(1)", to, c10::elementSize(dtype));
      expect(dtype, "partial(sum)", to, widened ? 4 : c10::elementSize(dtype));
    }
  const LayoutChange change{layout("dp=3", "dp: split(0)"), layout("dp=3", "dp: split(1)"), shape};
  EXPECT_EQ(move_one(3, change, {.dtype = at::kComplexFloat}).results[0].scalar_type(), at::kComplexFloat);
}

TEST(Redistribute, SumsEightBitFloatsInFloat) {
  harness::on_ranks(3, [](comm::World& world) {
    const at::Tensor term = at::full({3, 2}, 1.0 + world.rank(), at::kFloat).to(at::kFloat8_e4m3fn);
    const Layout partial = layout("dp=3", "dp: partial(sum)");
    const at::Tensor sum = redistribute(world, term, LayoutChange{partial, layout("dp=3", "replicated"), {3, 2}}, {});
    EXPECT_TRUE(at::equal(sum.to(at::kFloat), at::full({3, 2}, 6.0)));
    const at::Tensor row = redistribute(world, term, LayoutChange{partial, layout("dp=3", "dp: split(0)"), {3, 2}}, {});
    EXPECT_EQ(row.scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_TRUE(at::equal(row.to(at::kFloat), at::full({1, 2}, 6.0)));
  });
}

TEST(Redistribute, RunsSeveralAtOnce) {
  const std::vector<RedistributePlan> plans = all_pairs(layouts_2d("dp=2,tp=2"), {7, 5});
  const std::vector<RedistributePlan> some(plans.begin() + 40, plans.begin() + 80);
  const std::vector<Moved> moved = move_all(4, some, std::vector<at::Tensor>(some.size(), numbers({7, 5})), {.asynchronous = true});
  for (size_t i = 0; i < some.size(); ++i) EXPECT_TRUE(at::equal(moved[i].logical, numbers({7, 5}))) << to_string(some[i].change());
}

TEST(Redistribute, HandsBackItsInputWhereNothingChanges) {
  harness::on_ranks(2, [](comm::World& world) {
    const at::Tensor local = at::ones({2, 3});
    const LayoutChange change{layout("dp=2", "dp: split(0)"), layout("dp=2", "dp: split(0)"), {4, 3}};
    EXPECT_TRUE(redistribute(world, local, change, {}).is_alias_of(local));
  });
}

TEST(Redistribute, TakesTensorsThatAreNotContiguous) {
  harness::on_ranks(2, [](comm::World& world) {
    const at::Tensor whole = at::arange(12, at::kFloat).view({3, 4});
    const at::Tensor local = whole.t().contiguous().t().narrow(1, 2 * world.rank(), 2);
    const LayoutChange change{layout("dp=2", "dp: split(1)"), layout("dp=2", "replicated"), {3, 4}};
    EXPECT_TRUE(at::equal(redistribute(world, local, change, {}), whole));
  });
}

std::string refusal_of_move(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "no error";
}

TEST(Redistribute, NamesTheRankWhoseTensorHasTheWrongShape) {
  harness::on_ranks(2, [](comm::World& world) {
    const LayoutChange change{layout("dp=2", "dp: split(0)"), layout("dp=2", "replicated"), {5, 3}};
    const std::string text = refusal_of_move([&] { redistribute(world, at::ones({4, 3}), change, {}); });
    EXPECT_NE(text.find(fmt::format("rank {} hands in a tensor of shape [4, 3], it should hold [{}, 3]", world.rank(), 3 - world.rank())),
              std::string::npos)
        << text;
    EXPECT_NE(refusal_of_move([&] { redistribute(world, {}, change, {}); }).find("hands in no tensor"), std::string::npos);
  });
}

TEST(Redistribute, NoticesThatRanksPlanDifferently) {
  const harness::Run run = harness::on_ranks(3, {.expect_errors = true}, [](comm::World& world) {
    const Layout to = layout("dp=3", world.rank() == 1 ? "dp: split(1)" : "dp: split(0)");
    check_same_plan(world, RedistributePlan({layout("dp=3", "replicated"), to, {3, 3}}));
  });
  EXPECT_NE(std::string(run.error_on(0).what()).find("ranks 1 are about to do another change"), std::string::npos)
      << run.error_on(0).what();
  EXPECT_NE(std::string(run.error_on(1).what()).find("ranks 0, 2 are about"), std::string::npos);
}

}  // namespace
}  // namespace cairn::mesh
