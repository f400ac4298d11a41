#include "planner/experts/placement_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"

namespace cairn::planner {
namespace {

using ::testing::HasSubstr;

const PlacementTarget kTarget{.model = "0123456789abcdef", .mesh = "ep=2", .layers = 3, .experts = 4, .ranks = 2};

class PlacementFile : public ::testing::Test {
 protected:
  std::string refusal(const PlacementTarget& target) const {
    try {
      load_placement(path_, target);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void replace(const std::string& what, const std::string& by) const {
    std::string text = base::read_file(path_, 1 << 20);
    ASSERT_NE(text.find(what), std::string::npos) << text;
    text.replace(text.find(what), what.size(), by);
    base::write_atomically(path_, text);
  }

  const base::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "placement.json";
  const ExpertPlacement placement_ = random_placement(3, 4, 2, 5);
};

TEST_F(PlacementFile, ComesBackAsItWasSaved) {
  save_placement(path_, placement_, kTarget);
  EXPECT_EQ(load_placement(path_, kTarget), placement_);
}

TEST_F(PlacementFile, IsRefusedForAnotherModelOrMesh) {
  save_placement(path_, placement_, kTarget);
  PlacementTarget other = kTarget;
  other.model = "other";
  EXPECT_THAT(refusal(other), HasSubstr("is a placement for model 0123456789abcdef, this run has other"));
  other = kTarget;
  other.mesh = "ep=4";
  EXPECT_THAT(refusal(other), HasSubstr("is a placement for mesh ep=2, this run has ep=4"));
  other = kTarget;
  other.layers = 2;
  EXPECT_THAT(refusal(other), HasSubstr("layers 3, this run has 2"));
}

TEST_F(PlacementFile, RefusesDamage) {
  save_placement(path_, placement_, kTarget);
  replace("\"checksum\":\"", "\"checksum\":\"x");
  EXPECT_THAT(refusal(kTarget), HasSubstr("its checksum does not match"));
  save_placement(path_, placement_, kTarget);
  replace("\"placement\":[[", "\"placement\":[[7,");
  EXPECT_THAT(refusal(kTarget), HasSubstr("does not place 4 experts in layer 0"));
  save_placement(path_, contiguous_placement(3, 4, 2), kTarget);
  replace("[[0,0,1,1]", "[[0,0,0,1]");
  EXPECT_THAT(refusal(kTarget), HasSubstr("is not balanced in layer 0"));
  save_placement(path_, contiguous_placement(3, 4, 2), kTarget);
  replace("[[0,0,1,1]", "[[0,0,1,2]");
  EXPECT_THAT(refusal(kTarget), HasSubstr("names rank 2 of 2 in layer 0"));
  base::write_atomically(path_, "[]");
  EXPECT_THAT(refusal(kTarget), HasSubstr("is no placement of experts"));
  base::write_atomically(path_, "{");
  EXPECT_NE(refusal(kTarget), "");
}

TEST_F(PlacementFile, ATraceComesBackAsItWasSaved) {
  const RoutingTrace trace{3, {0, 1, 2, 3, 4, 5}};
  save_trace(folder_.path() / "trace.npy", trace);
  EXPECT_EQ(load_trace(folder_.path() / "trace.npy"), trace);
  const std::string text = base::read_file(folder_.path() / "trace.npy", 1 << 20);
  EXPECT_THAT(text, HasSubstr("{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3,), }"));
  EXPECT_EQ((text.size() - 12) % 64, 0u);
  EXPECT_EQ(text[text.size() - 13], '\n');
}

TEST_F(PlacementFile, RefusesWhatIsNoTrace) {
  base::write_atomically(path_, "no array");
  try {
    load_trace(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("A routing trace is int16 [tokens, layers]."));
  }
}

}  // namespace
}  // namespace cairn::planner
