#include "base/error.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "error_of.h"

namespace cairn::base {
namespace {

TEST(Error, GathersContextInnermostFirst) {
  Error error(Error::Kind::lost_peer, "rank 3 lost: silent for 30.0 s");
  error.about_peer(3).with("in all_reduce of layers.7.mlp.up").with("step 412");
  EXPECT_STREQ(error.what(), "rank 3 lost: silent for 30.0 s (in all_reduce of layers.7.mlp.up; step 412)");
  EXPECT_EQ(error.peer(), 3);
  EXPECT_EQ(error.sentence(), "rank 3 lost: silent for 30.0 s");
}

TEST(Error, TellsTheExitCode) {
  EXPECT_EQ(Error(Error::Kind::bad_input, "x").exit_code(), 2);
  EXPECT_EQ(Error(Error::Kind::corrupt_file, "x").exit_code(), 2);
  EXPECT_EQ(Error(Error::Kind::disk, "x").exit_code(), 3);
  EXPECT_EQ(Error(Error::Kind::lost_peer, "x").exit_code(), 4);
}

TEST(Error, NamesEveryKind) {
  EXPECT_STREQ(name(Error::Kind::bad_input), "bad_input");
  EXPECT_STREQ(name(Error::Kind::disk), "disk");
  EXPECT_STREQ(name(Error::Kind::broken_invariant), "broken_invariant");
}

TEST(Check, SaysWhatDoesNotHoldAndWhere) {
  const int found = 3;
  const Error error = error_of([&] { CAIRN_CHECK(found == 4, "{} of 4 pieces", found); });
  EXPECT_EQ(error.kind(), Error::Kind::broken_invariant);
  const std::string text = error.what();
  EXPECT_TRUE(text.starts_with("3 of 4 pieces: `found == 4` does not hold at ")) << text;
  EXPECT_NE(text.find("error_test.cpp:"), std::string::npos) << text;
}

TEST(Check, PassesInSilence) { EXPECT_NO_THROW(CAIRN_CHECK(1 + 1 == 2, "arithmetic")); }

}  // namespace
}  // namespace cairn::base
