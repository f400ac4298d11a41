#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::mesh {
namespace {

TEST(Mesh, CountsTheInnermostAxisFastest) {
  const Mesh mesh = parse_mesh("pp=2,dp=3,tp=2");
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.coordinate(7, "pp"), 1);
  EXPECT_EQ(mesh.coordinate(7, "dp"), 0);
  EXPECT_EQ(mesh.coordinate(7, "tp"), 1);
  EXPECT_EQ(mesh.peers(7, "dp"), (std::vector<int>{7, 9, 11}));
  EXPECT_EQ(mesh.peers(7, "tp"), (std::vector<int>{6, 7}));
  EXPECT_EQ(mesh.peers(7, "cp"), (std::vector<int>{7}));  // an axis that is not there has size 1
}

TEST(Mesh, FollowsAPermutationOfRanks) {
  Mesh mesh = parse_mesh("dp=2,tp=2");
  mesh.ranks = {3, 1, 0, 2};
  EXPECT_EQ(mesh.coordinate(0, "dp"), 1);
  EXPECT_EQ(mesh.peers(3, "tp"), (std::vector<int>{3, 1}));
  EXPECT_EQ(mesh.peers(2, "dp"), (std::vector<int>{1, 2}));
}

TEST(Mesh, PrintsWhatItParses) {
  for (const char* text : {"pp=2,dp=4", "one rank", "dp=4 on [4-7]", "dp=2,tp=2 on [3,1,0,2]", "island=(dp=4,tp=2|dp=2)",
                           "dp=2,pp=(tp=4|tp=2)", "island=(pp=(tp=2|one rank)|dp=3) on [1-6]"})
    EXPECT_EQ(to_string(parse_mesh(text)), text);
  EXPECT_EQ(parse_mesh(""), Mesh{});
  EXPECT_EQ(parse_mesh(" dp = 2 , tp = 3 "), parse_mesh("dp=2,tp=3"));
}

TEST(Mesh, HoldsPartsOfUnequalSize) {
  const Mesh mesh = parse_mesh("island=(dp=2,tp=2|dp=3)");
  EXPECT_EQ(mesh.size(), 7);
  EXPECT_EQ(mesh.axis_coordinates(3), (std::vector<AxisCoordinate>{{"island", 0, 2}, {"dp", 1, 2}, {"tp", 1, 2}}));
  EXPECT_EQ(mesh.axis_coordinates(6), (std::vector<AxisCoordinate>{{"island", 1, 2}, {"dp", 2, 3}}));
  EXPECT_EQ(mesh.extent_at(0, "dp"), 2);
  EXPECT_EQ(mesh.extent_at(4, "dp"), 3);
  EXPECT_EQ(mesh.extent_at(4, "tp"), 1);
  EXPECT_EQ(mesh.extent("island"), 2);
  EXPECT_EQ(mesh.peers(4, "dp"), (std::vector<int>{4, 5, 6}));
  EXPECT_EQ(mesh.peers(2, "island"), (std::vector<int>{2, 5}));  // dp 1 of both islands
  EXPECT_EQ(mesh.peers(6, "island"), (std::vector<int>{6}));     // the first island has no dp 2
  EXPECT_EQ(mesh.peers(3, "island"), (std::vector<int>{3}));     // the second has no tp 1
  EXPECT_EQ(mesh.groups({"dp"}), (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4, 5, 6}}));
}

TEST(Mesh, RepeatsUnequalPartsUnderOuterAxes) {
  const Mesh mesh = parse_mesh("dp=2,pp=(tp=4|tp=2)");
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.axis_coordinates(11), (std::vector<AxisCoordinate>{{"dp", 1, 2}, {"pp", 1, 2}, {"tp", 1, 2}}));
  EXPECT_EQ(mesh.peers(4, "dp"), (std::vector<int>{4, 10}));
  EXPECT_EQ(mesh.peers(7, "pp"), (std::vector<int>{7, 11}));
  EXPECT_EQ(mesh.peers(9, "pp"), (std::vector<int>{9}));
}

TEST(Mesh, FlattensSeveralAxesIntoOneSetOfPeers) {
  const Mesh mesh = parse_mesh("pp=2,dp=2,tp=2");
  EXPECT_EQ(mesh.peers_along(5, {"pp", "tp"}), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(mesh.groups({"pp", "tp"}), (std::vector<std::vector<int>>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(mesh.groups({"dp"}).size(), 4u);
}

TEST(Mesh, ContainsItsRanksOnly) {
  const Mesh mesh = parse_mesh("dp=2 on [5,3]");
  EXPECT_TRUE(mesh.contains(3));
  EXPECT_FALSE(mesh.contains(0));
  EXPECT_EQ(mesh.members(), (std::vector<int>{5, 3}));
  EXPECT_FALSE(parse_mesh("dp=2").contains(2));
  EXPECT_THROW(mesh.coordinate(0, "dp"), Error);
}

TEST(Mesh, RefusesWhatIsNotAMesh) {
  for (const auto& [text, part] : {std::pair{"dpp=2", "axis \"dpp\" is unknown"},
                                   {"dp=0", "mesh.dp = 0"},
                                   {"dp", "expected axis=size"},
                                   {"dp=2,dp=2", "given twice"},
                                   {"dp=2x", "mesh.dp = 2x"},
                                   {"dp=99999999999", "mesh.dp = 99999999999"},
                                   {"pp=(tp=2|tp=4),dp=2", "mesh axis pp has parts"},
                                   {"pp=(tp=2|pp=2)", "axis \"pp\" is given twice"},
                                   {"pp=(tp=2", "expected )"},
                                   {"dp=2 on [0]", "2 positions but lists 1 ranks"},
                                   {"dp=2 on [1,1]", "lists rank 1 twice"},
                                   {"dp=2 on [3-1]", "counts up"},
                                   {"dp=2 tp=2", "expected the end at \"tp=2\""}}) {
    try {
      parse_mesh(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Mesh, RefusesPartsThatDoNotFit) {
  Mesh mesh = parse_mesh("pp=(tp=2|tp=4)");
  EXPECT_THROW(mesh.extent("tp"), Error);
  mesh.axes[0].size = 3;
  EXPECT_THROW(check(mesh), Error);
  mesh.axes[0].size = 2;
  mesh.parts[0].ranks = {0, 1};
  EXPECT_THROW(check(mesh), Error);
}

}  // namespace
}  // namespace cairn::mesh
