// Of a shard unit, what is frozen is neither packed nor counted.
#include "parallel/state/active_unit.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

mesh::FlatLayout three_pieces() {
  mesh::FlatLayout layout;
  layout.append("a", {4});
  layout.append("b", {3});
  layout.append("c", {5});
  return layout;
}

TEST(ActiveUnit, CountsWhatEachRankOwnsOfTheChosenPieces) {
  const ShardUnit unit{.first = 0, .last = 3, .offset = 0, .elements = 12, .counts = {6, 6}};
  const ActiveUnit first = active_unit(three_pieces(), unit, {true, false, true}, 0);
  EXPECT_FALSE(first.all);
  EXPECT_EQ(first.elements, 9);
  EXPECT_EQ(first.counts, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(first.runs, (std::vector<mesh::Interval>{{0, 4}, {7, 12}}));
  EXPECT_EQ(first.own, (std::vector<mesh::Interval>{{0, 4}}));
  EXPECT_EQ(active_unit(three_pieces(), unit, {true, false, true}, 1).own, (std::vector<mesh::Interval>{{7, 12}}));
  EXPECT_TRUE(active_unit(three_pieces(), unit, {true, true, true}, 0).all);
  EXPECT_TRUE(active_unit(three_pieces(), unit, {false, false, false}, 0).none());
}

TEST(ActiveUnit, PacksAndUnpacks) {
  const at::Tensor flat = at::arange(12, at::kFloat), into = at::zeros({12});
  const std::vector<mesh::Interval> runs{{0, 4}, {7, 12}};
  const at::Tensor packed = pack(flat, runs);
  EXPECT_EQ(packed.numel(), 9);
  unpack(packed, runs, into);
  EXPECT_EQ(into[3].item<float>(), 3);
  EXPECT_EQ(into[5].item<float>(), 0);
  EXPECT_EQ(into[11].item<float>(), 11);
}

}  // namespace
}  // namespace cairn::parallel
