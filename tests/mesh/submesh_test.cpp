#include <gtest/gtest.h>

#include "base/error.h"
#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

TEST(Submesh, FixesACoordinate) {
  const Mesh mesh = parse_mesh("pp=2,dp=2,tp=2");
  EXPECT_EQ(to_string(select(mesh, "pp", 1)), "dp=2,tp=2 on [4-7]");
  EXPECT_EQ(to_string(select(mesh, "tp", 0)), "pp=2,dp=2 on [0,2,4,6]");
  EXPECT_EQ(to_string(select(select(mesh, "pp", 1), "dp", 0)), "tp=2 on [4-5]");
  EXPECT_EQ(to_string(select(parse_mesh("dp=2,tp=2 on [3,1,0,2]"), "dp", 1)), "tp=2 on [0,2]");
  EXPECT_EQ(to_string(select(mesh, "ep", 0)), "pp=2,dp=2,tp=2 on [0-7]");  // an axis that is not there has one coordinate
}

TEST(Submesh, TakesOnePartOfUnequalOnes) {
  const Mesh mesh = parse_mesh("dp=2,pp=(tp=4|tp=2)");
  EXPECT_EQ(to_string(select(mesh, "pp", 0)), "dp=2,tp=4 on [0-3,6-9]");
  EXPECT_EQ(to_string(select(mesh, "pp", 1)), "dp=2,tp=2 on [4-5,10-11]");
  EXPECT_EQ(to_string(select(mesh, "dp", 1)), "pp=(tp=4|tp=2) on [6-11]");
  EXPECT_EQ(to_string(select(mesh, "tp", 1)), "dp=2,pp=(one rank|one rank) on [1,5,7,11]");
}

TEST(Submesh, RefusesACoordinateThatIsNotThere) {
  for (const auto& [mesh, axis, coordinate] :
       {std::tuple{"dp=2", "dp", 2}, {"dp=2", "tp", 1}, {"pp=(tp=4|tp=2)", "tp", 2}, {"dp=2", "xy", 0}}) {
    try {
      select(parse_mesh(mesh), axis, coordinate);
      ADD_FAILURE() << mesh;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input) << error.what();
    }
  }
}

TEST(Submesh, SeesSeveralAxesAsOne) {
  const Mesh mesh = parse_mesh("pp=2,dp=2,tp=2");
  EXPECT_EQ(to_string(flattened(mesh, {"dp", "tp"})), "pp=2,dp=4 on [0-7]");
  const Mesh outer = flattened(mesh, {"pp", "tp"});
  EXPECT_EQ(to_string(outer), "pp=4,dp=2 on [0,2,1,3-4,6,5,7]");
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(outer.coordinate(rank, "pp"), 2 * mesh.coordinate(rank, "pp") + mesh.coordinate(rank, "tp"));
  EXPECT_THROW(flattened(parse_mesh("pp=(tp=2|tp=4)"), {"pp", "tp"}), Error);
  EXPECT_THROW(flattened(mesh, {"ep", "tp"}), Error);
}

}  // namespace
}  // namespace cairn::mesh
