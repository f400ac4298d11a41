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

TEST(Mesh, PrintsWhatItParses) { EXPECT_EQ(to_string(parse_mesh("pp=2,dp=4")), "pp=2,dp=4"); }

TEST(Mesh, RefusesWhatIsNotAMesh) {
  for (const auto& [text, part] : {std::pair{"dpp=2", "axis \"dpp\" is unknown"},
                                   {"dp=0", "mesh.dp = 0"},
                                   {"dp", "expected axis=size"},
                                   {"dp=2,dp=2", "given twice"},
                                   {"dp=2x", "mesh.dp = 2x"}}) {
    try {
      parse_mesh(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cairn::mesh
