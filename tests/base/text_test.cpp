#include "base/text.h"

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

TEST(Text, WritesBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536LL << 20), "1.50 GiB");
  EXPECT_EQ(human_bytes((1LL << 20) - 1), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(human_bytes(12LL << 20), "12.0 MiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8.00 EiB");
  EXPECT_EQ(human_bytes(INT64_MIN), "-8.00 EiB");
}

TEST(Text, WritesNounsWithTheirNumber) {
  EXPECT_EQ(plural(0, "document"), "0 documents");
  EXPECT_EQ(plural(1, "bad line"), "1 bad line");
  EXPECT_EQ(plural(2, "token"), "2 tokens");
}

// Printed by Python: bytes.decode("utf-8", "replace").
TEST(Text, ReplacesEachMaximalPartThatIsNotUtf8) {
  const std::string no = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d"), "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d");
  EXPECT_EQ(valid_utf8("a\x80z"), "a" + no + "z");
  EXPECT_EQ(valid_utf8("\xe2\x82"), no) << "a character that is cut short is one part";
  EXPECT_EQ(valid_utf8("\xe2\x82\x41"), no + "A");
  EXPECT_EQ(valid_utf8("\xf0\x9f\x8c\xc3\xa9"), no + "\xc3\xa9");
  EXPECT_EQ(valid_utf8("\xc0\xaf"), no + no) << "overlong";
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), no + no + no) << "a surrogate";
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), no + no + no + no) << "beyond Unicode";
  EXPECT_EQ(valid_utf8("\xf5\xff"), no + no);
  EXPECT_EQ(valid_utf8(""), "");
}

TEST(Text, WritesCounts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(999.7), "1.00k");
  EXPECT_EQ(human_count(12'700'000), "12.7M");
  EXPECT_EQ(human_count(1.2e9), "1.20B");
  EXPECT_EQ(human_count(5e16), "50000T");
  EXPECT_EQ(human_count(0.5), "0.50");
  EXPECT_EQ(human_count(-1500), "-1.50k");
}

TEST(Text, WritesDurations) {
  using namespace std::chrono_literals;
  EXPECT_EQ(human_duration(0ns), "0 s");
  EXPECT_EQ(human_duration(400us), "400 us");
  EXPECT_EQ(human_duration(12'340ms), "12.3 s");
  EXPECT_EQ(human_duration(59'960ms), "1m 00s");  // not "60.0 s"
  EXPECT_EQ(human_duration(80s), "1m 20s");
  EXPECT_EQ(human_duration(3599'700ms), "1h 00m");
  EXPECT_EQ(human_duration(125min), "2h 05m");
  EXPECT_EQ(human_duration(76h), "3d 04h");
  EXPECT_EQ(human_duration(-80s), "-1m 20s");
}

TEST(Utf8Length, IsThatOfWellFormedCharactersAlone) {
  EXPECT_EQ(utf8_length("a"), 1u);
  EXPECT_EQ(utf8_length("xé", 1), 2u);
  EXPECT_EQ(utf8_length("日"), 3u);
  EXPECT_EQ(utf8_length("\xf0\x9f\x99\x82"), 4u);
  for (const char* bad :
       {"\x80", "\xc1\x81", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xe6\x97", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"})
    EXPECT_EQ(utf8_length(bad), 0u) << bad;
}

}  // namespace
}  // namespace cairn::base
