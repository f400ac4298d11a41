#include "mesh/ragged.h"

#include <functional>
#include <map>

#include <fmt/format.h>

#include "mesh/redistribute_runs.h"

namespace cairn::mesh {
namespace {

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "no error";
}

TEST(Ragged, ListsWhatEachCoordinateOwns) {
  const Ragged table{0, {{0}, {2}, {0, 1}, {2}, {1}}, {}, false};
  EXPECT_EQ(ids_of(table, 0), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(ids_of(table, 2), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(interval_of(table, 2, 12), (Interval{6, 8}));  // 3 + 3 + 2 + 2 + 2
  EXPECT_EQ(homes(table).owners[2], std::vector<int>{0});
  EXPECT_EQ(even_ragged(0, 5, 3).owners, (std::vector<std::vector<int>>{{0}, {0}, {1}, {1}, {2}}));
  const Ragged lengths{0, {{0}, {1}}, {3, 1}, false};
  EXPECT_EQ(intervals_of(lengths, 1, 4), (std::vector<Interval>{{3, 4}}));
}

TEST(Ragged, ChangesByMakingAnotherTable) {
  const Ragged table = even_ragged(0, 4, 2);
  EXPECT_EQ(moved(table, 1, 0, 1).owners, (std::vector<std::vector<int>>{{0}, {1}, {1}, {1}}));
  EXPECT_EQ(with_owner(table, 0, 1).owners[0], (std::vector<int>{0, 1}));
  EXPECT_NE(message_of([&] { with_owner(table, 0, 0); }).find("coordinate 0 owns id 0 already"), std::string::npos);
  EXPECT_NE(message_of([&] { without_owner(table, 3, 0); }).find("coordinate 0 does not own id 3"), std::string::npos);
  EXPECT_NE(message_of([&] { without_owner(table, 3, 1); }).find("the last owner of id 3"), std::string::npos);
  EXPECT_NE(message_of([&] { with_owner(table, 4, 0); }).find("id 4 of a table of 4 ids"), std::string::npos);
}

TEST(Ragged, RefusesTablesThatDoNotFit) {
  EXPECT_NE(message_of([] { check(Ragged{0, {{0}, {}}, {}, false}, 2, 4); }).find("id 1 has no owner"), std::string::npos);
  EXPECT_NE(message_of([] {
              check(Ragged{0, {{0}, {2}}, {}, false}, 2, 4);
            }).find("owned by coordinate 2: the axis has 2"),
            std::string::npos);
  EXPECT_NE(message_of([] { check(Ragged{0, {{1, 1}}, {}, false}, 2, 4); }).find("lists owner 1 twice"), std::string::npos);
  EXPECT_NE(message_of([] { check(Ragged{0, {{1}}, {3}, false}, 2, 4); }).find("add up to 3, the dim has 4"), std::string::npos);
  EXPECT_NE(message_of([] { check(Ragged{0, {{1}}, {3, 1}, false}, 2, 4); }).find("2 lengths for 1 ids"), std::string::npos);
  EXPECT_NE(message_of([] { check(Ragged{0, {}, {}, false}, 2, 4); }).find("lists no ids"), std::string::npos);
  EXPECT_EQ(message_of([] { check(Ragged{0, {{1}, {0}}, {3, 1}, false}, 2, 4); }), "no error");
}

// Eight experts of two rows on three ranks; each change moves only what the new owner lacks.
TEST(Ragged, MovesOnlyTheIdsThatChangeHands) {
  const std::vector<int64_t> shape{16, 3};
  const Ragged before = even_ragged(0, 8, 3);  // 0 0 0 1 1 1 2 2
  const Ragged after = with_owner(moved(moved(before, 0, 0, 2), 5, 1, 0), 7, 1);
  const auto on_ep = [](Ragged table) { return Layout{parse_mesh("ep=3"), {{{"ep", std::move(table)}}}}; };
  const Moved there = move_one(3, {on_ep(before), on_ep(after), shape});
  EXPECT_TRUE(at::equal(there.logical, numbers(shape)));
  EXPECT_EQ(there.bytes, 3 * (2 * 3 * 4));  // ids 0, 5 and 7
  const Moved back = move_one(3, {on_ep(after), on_ep(before), shape});
  EXPECT_TRUE(at::equal(back.logical, numbers(shape)));
  EXPECT_EQ(back.bytes, 2 * (2 * 3 * 4));  // coordinate 2 never lost id 7
}

TEST(Ragged, GoesToAndFromEveryOtherPlacement) {
  const std::vector<int64_t> shape{11, 5};
  std::vector<Layout> layouts;
  for (const char* text : {"ep: ragged(0, 0|2|1|0|0; lengths 2,3,1,0,5)", "ep: ragged(1, 0+1|2|2+0)", "ep: ragged(0, 1|1+2+0|0; partial)",
                           "ep: split(0)", "ep: replicate", "ep: partial(sum)", "ep: split(1, 3:5|-|0:3)"})
    layouts.push_back(layout("ep=3", text));
  std::vector<RedistributePlan> plans;
  for (const Layout& from : layouts)
    for (const Layout& to : layouts) plans.emplace_back(LayoutChange{from, to, shape});
  const std::vector<Moved> moved = move_all(3, plans, std::vector<at::Tensor>(plans.size(), numbers(shape)));
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_TRUE(at::equal(moved[i].logical, numbers(shape))) << to_string(plans[i].change());
    EXPECT_EQ(moved[i].bytes, 4 * plans[i].cost().elements) << to_string(plans[i].change());
  }
}

TEST(Ragged, SumsTheGradientsOfCopiesAtTheirOwners) {
  // A parameter with a second copy of id 0: its gradients meet at the home when the copy is given up.
  const Layout one = layout("ep=2", "ep: ragged(0, 0|1)"), two = layout("ep=2", "ep: ragged(0, 0+1|1)");
  const LayoutChange copies{one, two, {4, 3}};
  const Moved gradient = move_one(2, backward_of(copies));
  EXPECT_TRUE(at::equal(gradient.logical, numbers({4, 3})));
  EXPECT_EQ(gradient.bytes, 2 * 3 * 4);
}

TEST(Ragged, AsksTheCopiesInTurn) {
  // Four ranks without the expert, two with it: each of the two serves two of the four.
  const RedistributePlan plan({layout("ep=2", "ep: ragged(0, 0+1)"), layout("dp=4 on [2-5]", "replicated"), {4, 3}});
  std::map<int, int64_t> sent;
  for (const auto& [pair, elements] : plan.traffic()) sent[pair.first] += elements;
  EXPECT_EQ(sent, (std::map<int, int64_t>{{0, 24}, {1, 24}}));
}

}  // namespace
}  // namespace cairn::mesh
