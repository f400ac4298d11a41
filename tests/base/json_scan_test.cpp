#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/json/scan.h"

namespace cairn::base {
namespace {

using testing::HasSubstr;

const JsonLimits kSmall{.depth = 3, .tree_bytes = 10'000, .string_bytes = 10};

std::string scanned(std::string_view text) { return scan_json(text, kSmall).trouble; }

TEST(JsonScan, LetsPassWhatKeepsToTheLimits) {
  for (const char* good :
       {"{}", R"({"a": [1, -2.5e3, "x\"]"], "b": {"c": null}})", "[[[]]]", "7", R"("ten bytes.")", "not JSON, but small"})
    EXPECT_EQ(scanned(good), "") << good;
}

TEST(JsonScan, CountsDepthOutsideStringsOnly) {
  EXPECT_EQ(scanned("[[[\"[[[[\"]]]"), "");
  EXPECT_EQ(scanned("[{\"a\":[[7]]}]"), "nested more than 3 deep, at byte 8");
  EXPECT_TRUE(scan_json(std::string(1'000'000, '['), kSmall).too_deep);
}

TEST(JsonScan, FindsWhatAParserWouldStumbleOn) {
  EXPECT_EQ(scanned(""), "it is empty");
  EXPECT_THAT(scanned("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(scanned(std::string_view("\xff\xfe{\0", 4)), HasSubstr("UTF-16"));
  EXPECT_EQ(scanned(std::string_view("{}\0{", 4)), "a NUL byte at byte 3: not JSON");
  EXPECT_EQ(scanned("[\"abc"), "a string begins at byte 2 and has no end");
  EXPECT_EQ(scanned("[\"abc\\\"]"), "a string begins at byte 2 and has no end");
  EXPECT_EQ(scanned("[\"\\"), "a string begins at byte 2 and has no end");
  EXPECT_EQ(scanned("[\"eleven byte\"]"), "a string of 11 B at byte 2: at most 10 B are read");
  EXPECT_THAT(scanned("[" + std::string(1001, '1')), HasSubstr("a number or word of more than 1000"));
  EXPECT_EQ(scanned("[" + std::string(1000, '1')), "");
}

TEST(JsonScan, EstimatesTheTreeFromAbove) {
  std::string lists = "[";
  for (int i = 0; i < 200; ++i) lists += "[],";
  EXPECT_THAT(scanned(lists), HasSubstr("more than 9.77 KiB of memory"));
}

TEST(GuardedJson, SaysInWordsWhatIsWrong) {
  EXPECT_EQ(parse_json_guarded("[1, x]", 3).trouble, "not JSON at byte 5");
  EXPECT_EQ(parse_json_guarded("[\"\xff\"]", 3).trouble, "not UTF-8 at byte 3");
  EXPECT_EQ(parse_json_guarded("{\"a\": 1, \"a\": 2}", 3).trouble, "the key \"a\" stands twice in one object");
  EXPECT_EQ(parse_json_guarded("[1e999]", 3).trouble, "a number that is too large for any");
  EXPECT_EQ(parse_json_guarded("[[[[1]]]]", 3).trouble, "nested more than 3 deep, at byte 4");
  EXPECT_EQ(parse_json_guarded("[1]", 3).trouble, "");
}

TEST(JsonError, IsThatOfAParserThatKeepsNothing) {
  EXPECT_EQ(json_error(R"({"a": [1, true, null, "x", -2.5]})"), "");
  EXPECT_EQ(json_error("[1, x]"), "not JSON at byte 5");
  EXPECT_EQ(json_error("[1] 2"), "not JSON at byte 5");
  EXPECT_THAT(json_error(std::string(1'000'000, '[')), HasSubstr("nested"));
}

TEST(Shown, IsCutToALengthThatPeopleRead) {
  EXPECT_EQ(shown(Json("abc")), "\"abc\"");
  EXPECT_EQ(shown(Json(std::string(1000, 'x')), 10), "\"xxxxxxxxx...");
}

}  // namespace
}  // namespace cairn::base
