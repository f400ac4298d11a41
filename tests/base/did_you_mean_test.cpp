#include "base/did_you_mean.h"

#include <gtest/gtest.h>

#include "error_of.h"

namespace cairn::base {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("tset", "test"), 1);  // a swap
  EXPECT_EQ(edit_distance("steps", "stepz"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // a swapped pair is not edited again
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> known = {"all_reduce", "diloco", "noloco", "gossip"};
  EXPECT_EQ(nearest("dilco", known), "diloco");
  EXPECT_EQ(nearest("All-Reduce", known), "all_reduce");
  EXPECT_EQ(nearest("gosssip", known), "gossip");
  EXPECT_EQ(nearest("diloco", known), "diloco");
}

TEST(Nearest, FindsNothingWhereNothingIsClose) {
  EXPECT_EQ(nearest("bananas", {"diloco", "gossip"}), std::nullopt);
  EXPECT_EQ(nearest("", {"a"}), std::nullopt);
  EXPECT_EQ(nearest("x", {"y"}), std::nullopt);  // one letter, and it is wrong
  EXPECT_EQ(nearest("x", {}), std::nullopt);
  EXPECT_EQ(nearest(std::string(1'000'000, 'x'), {"x"}), std::nullopt);
}

TEST(Nearest, PrefersTheFirstOfEquals) { EXPECT_EQ(nearest("abcx", {"abcd", "abce"}), "abcd"); }

TEST(FailUnknown, SuggestsOrLists) {
  EXPECT_EQ(message_of([] {
              fail_unknown("sync rule", "dilco", {"all_reduce", "diloco"});
            }),
            "unknown sync rule \"dilco\": did you mean \"diloco\"?");
  EXPECT_EQ(message_of([] {
              fail_unknown("sync rule", "zzz", {"all_reduce", "diloco"});
            }),
            "unknown sync rule \"zzz\": known are all_reduce, diloco");
  EXPECT_EQ(error_of([] { fail_unknown("codec", "zzz", {}); }).kind(), Error::Kind::bad_input);
}

}  // namespace
}  // namespace cairn::base
