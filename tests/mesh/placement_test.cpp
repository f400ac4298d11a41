#include "mesh/placement.h"

#include <map>

#include <gtest/gtest.h>

#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

// How often each element of a tensor is held over all ranks.
std::map<std::vector<int64_t>, int> cover(const Placement& placement, const Mesh& mesh, const std::vector<int64_t>& shape) {
  std::map<std::vector<int64_t>, int> held;
  for (int rank = 0; rank < mesh.size(); ++rank)
    for (const Box& box : boxes(placement, mesh, rank, shape))
      for (int64_t i = box.dims[0].begin; i < box.dims[0].end; ++i)
        for (int64_t j = box.dims[1].begin; j < box.dims[1].end; ++j) ++held[{i, j}];
  return held;
}

TEST(Placement, SplitsCoverEveryElementOnceForOddSizesToo) {
  for (const auto& shape : {std::vector<int64_t>{7, 5}, {1, 1}, {2, 13}, {64, 3}}) {
    const Mesh mesh = parse_mesh("dp=3,tp=4");
    const Placement placement{{{"dp", Split{0, {}}}, {"tp", Split{1, {}}}}};
    const auto held = cover(placement, mesh, shape);
    EXPECT_EQ(static_cast<int64_t>(held.size()), shape[0] * shape[1]);
    for (const auto& [at, times] : held) EXPECT_EQ(times, 1);
  }
}

TEST(Placement, TwoAxesMaySplitOneDimInsideEachOther) {
  const Mesh mesh = parse_mesh("dp=2,tp=3");
  const Placement placement{{{"dp", Split{0, {}}}, {"tp", Split{0, {}}}}};
  const auto held = cover(placement, mesh, {11, 1});
  EXPECT_EQ(held.size(), 11u);
  for (const auto& [at, times] : held) EXPECT_EQ(times, 1);
  EXPECT_EQ(boxes(placement, mesh, 3, {12, 1})[0], (Box{{{6, 8}, {0, 1}}}));  // dp 1, tp 0
}

TEST(Placement, HoldsListedPiecesInTheirOrder) {
  // Zigzag over two ranks: the first and the last quarter, then the middle.
  const Placement zigzag{{{"cp", Split{0, {{{0, 2}, {6, 8}}, {{2, 4}, {4, 6}}}}}}};
  const Mesh mesh = parse_mesh("cp=2");
  EXPECT_EQ(boxes(zigzag, mesh, 0, {8, 3}), (std::vector<Box>{{{{0, 2}, {0, 3}}}, {{{6, 8}, {0, 3}}}}));
  const auto held = cover(zigzag, mesh, {8, 3});
  EXPECT_EQ(held.size(), 24u);
}

TEST(Placement, ReplicatedAndPartialHoldTheWhole) {
  const Mesh mesh = parse_mesh("dp=2");
  EXPECT_EQ(boxes({}, mesh, 1, {4, 2}), std::vector<Box>{whole({4, 2})});
  EXPECT_EQ(boxes({{{"dp", Partial{}}}}, mesh, 1, {4, 2}), std::vector<Box>{whole({4, 2})});
  EXPECT_EQ(to_string(Placement{{{"dp", Partial{}}, {"tp", Split{1, {}}}}}), "dp: partial(sum), tp: split(1)");
}

TEST(Box, IntersectsToWhatBothHold) {
  EXPECT_EQ(intersect({{{0, 4}, {2, 9}}}, {{{3, 8}, {0, 5}}}), (Box{{{3, 4}, {2, 5}}}));
  EXPECT_FALSE(intersect({{{0, 4}}}, {{{4, 8}}}));
  EXPECT_EQ((Box{{{3, 4}, {2, 5}}}).elements(), 3);
}

}  // namespace
}  // namespace cairn::mesh
