#include "mesh/box.h"

#include <gtest/gtest.h>

namespace cairn::mesh {
namespace {

TEST(Box, IntersectsToWhatBothHold) {
  EXPECT_EQ(intersect({{{0, 4}, {2, 9}}}, {{{3, 8}, {0, 5}}}), (Box{{{3, 4}, {2, 5}}}));
  EXPECT_FALSE(intersect({{{0, 4}}}, {{{4, 8}}}));
  EXPECT_EQ((Box{{{3, 4}, {2, 5}}}).elements(), 3);
  EXPECT_EQ(intersect({}, {}), Box{});  // scalars
}

// Every element of a 6 x 6 square is in the hole or in exactly one of the boxes around it, whatever the hole.
TEST(Box, SubtractsToBoxesThatDoNotMeet) {
  const Box square = whole({6, 6});
  for (const Box& hole :
       {Box{{{2, 4}, {1, 3}}}, Box{{{0, 6}, {0, 6}}}, Box{{{5, 9}, {-1, 2}}}, Box{{{0, 1}, {0, 6}}}, Box{{{7, 8}, {0, 6}}}}) {
    const std::vector<Box> around = subtract(square, hole);
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t j = 0; j < 6; ++j) {
        const Box one{{{i, i + 1}, {j, j + 1}}};
        int times = contains(hole, one) ? 1 : 0;
        for (const Box& box : around) times += contains(box, one) ? 1 : 0;
        EXPECT_EQ(times, 1) << to_string(hole) << " at " << i << ", " << j;
      }
  }
}

TEST(Box, IsCutAlongItsLongestDim) {
  EXPECT_EQ(cut({{{2, 4}, {10, 17}}}, 3), (std::vector<Box>{{{{2, 4}, {10, 13}}}, {{{2, 4}, {13, 15}}}, {{{2, 4}, {15, 17}}}}));
  EXPECT_EQ(cut({{{0, 2}}}, 5).size(), 2u);
  EXPECT_EQ(cut({}, 3), std::vector<Box>{Box{}});
}

}  // namespace
}  // namespace cairn::mesh
