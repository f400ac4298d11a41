#include "cli/text/streaming_text.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

TEST(StreamingText, HoldsBackACharacterUntilItIsWhole) {
  StreamingText text;
  EXPECT_EQ(text.add("a\xE2"), "a");
  EXPECT_EQ(text.add("\x82"), "");
  EXPECT_EQ(text.add("\xAC!"), "\xE2\x82\xAC!");
  EXPECT_EQ(text.add("\xF0\x9F"), "");
  EXPECT_EQ(text.rest(), "\xF0\x9F");
  EXPECT_EQ(text.text(), "a\xE2\x82\xAC!\xF0\x9F");
}

TEST(StreamingText, FindsTheBytesOfACharacterThatIsNotComplete) {
  EXPECT_EQ(incomplete_bytes(""), 0u);
  EXPECT_EQ(incomplete_bytes("ab"), 0u);
  EXPECT_EQ(incomplete_bytes("a\xC3"), 1u);
  EXPECT_EQ(incomplete_bytes("a\xC3\xA9"), 0u);
  EXPECT_EQ(incomplete_bytes("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_bytes("\xF0\x9F\x98\x80"), 0u);
  EXPECT_EQ(incomplete_bytes("\x80\x80\x80\x80"), 0u);  // bytes that never become a character are not waited for
  EXPECT_EQ(incomplete_bytes("\xFF"), 0u);
}

TEST(StreamingText, EndsBeforeAStopStringThatComesInPieces) {
  StreamingText text({"\n\nQ", "END"});
  EXPECT_EQ(text.add("one\n"), "one");
  EXPECT_EQ(text.add("two\n\n"), "\ntwo");
  EXPECT_FALSE(text.stopped());
  EXPECT_EQ(text.add("EN"), "\n\n");
  EXPECT_EQ(text.add("E\n"), "ENE");
  EXPECT_EQ(text.add("\nQ: more"), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.text(), "one\ntwo\n\nENE");
  EXPECT_EQ(text.add("after"), "");
  EXPECT_EQ(text.rest(), "");
}

}  // namespace
}  // namespace cairn::cli
