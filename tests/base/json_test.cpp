#include "base/json.h"

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

constexpr int kDepth = 3;

std::string nested(int lists, const std::string& inside) { return std::string(lists, '[') + inside + std::string(lists, ']'); }

TEST(Json, ReadsWhatIsValid) {
  const Json json = parse_json(R"({"b": [1, -2, 2.5, null], "a": {"deep": "\u00e9"}})");
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["b"][1], -2);
  EXPECT_EQ(json["b"][2], 2.5);
  EXPECT_TRUE(json["b"][3].is_null());
  EXPECT_EQ(json["a"]["deep"], "é");
}

TEST(Json, SortsKeysOrKeepsTheirOrder) {
  const std::string text = R"({"b":1,"a":2})";
  EXPECT_EQ(compact(parse_json(text)), R"({"a":2,"b":1})");
  EXPECT_EQ(compact(parse_ordered_json(text)), text);
}

TEST(Json, IsDiscardedWhereItIsNotValid) {
  for (const char* bad : {"", "{", "[1, 2", "{\"a\": 1,}", "[1] 2", "nul", "[1e999]", "\"\xff\"", "\"tab\there\""}) {
    EXPECT_TRUE(parse_json(bad).is_discarded()) << bad;
    EXPECT_TRUE(parse_ordered_json(bad).is_discarded()) << bad;
    EXPECT_FALSE(parse_json(bad).is_object()) << bad;
  }
}

TEST(GuardedJson, IsTheValueOfWhatIsValidAndNotTooDeep) {
  const GuardedJson read = parse_json_guarded(nested(kDepth, "7"), kDepth);
  EXPECT_EQ(read.value[0][0][0], 7);
  EXPECT_FALSE(read.too_deep);
  EXPECT_FALSE(read.invalid_at);
}

TEST(GuardedJson, StopsAtWhatIsTooDeep) {
  for (const std::string& deep : {nested(kDepth + 1, "7"), nested(100000, ""), std::string(100000, '[')}) {
    const GuardedJson read = parse_json_guarded(deep, kDepth);
    EXPECT_TRUE(read.too_deep);
    EXPECT_FALSE(read.invalid_at);
    EXPECT_TRUE(read.value.is_discarded());
  }
}

TEST(GuardedJson, SaysWhereTheTextStopsBeingJson) {
  const GuardedJson read = parse_json_guarded("[1, x]", kDepth);
  EXPECT_EQ(read.invalid_at, 5);
  EXPECT_FALSE(read.too_deep);
  EXPECT_TRUE(read.value.is_discarded());
}

TEST(GuardedJson, NamesAKeyThatAnObjectHasTwice) {
  const GuardedJson read = parse_json_guarded(R"({"a": {"b": 1}, "c": [{"b": 2}, {"d": 1, "e": 2, "d": 3}]})", kDepth);
  EXPECT_EQ(read.repeated_key, "d");
  EXPECT_TRUE(read.value.is_discarded());
  EXPECT_FALSE(parse_json_guarded(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})", kDepth).repeated_key);
}

TEST(GuardedJson, HoldsNoNumberBeyondADouble) { EXPECT_TRUE(parse_json_guarded("[1e999]", kDepth).value.is_discarded()); }

TEST(Json, IsWrittenOnOneLineOrIndentedByTwo) {
  OrderedJson json;
  json["b"] = 1.0;
  json["a"].push_back("x");
  EXPECT_EQ(compact(json), R"({"b":1.0,"a":["x"]})");
  EXPECT_EQ(pretty(json), "{\n  \"b\": 1.0,\n  \"a\": [\n    \"x\"\n  ]\n}");
}

TEST(Json, IsWrittenAsUtf8WhateverTheBytes) {
  const std::string bytes = "é\xff!", replaced = "\"é\xef\xbf\xbd!\"";
  EXPECT_EQ(compact(Json(bytes)), replaced);
  EXPECT_EQ(compact(OrderedJson(bytes)), replaced);
  EXPECT_EQ(pretty(OrderedJson(bytes)), replaced);
  EXPECT_TRUE(parse_json(compact(Json(bytes))).is_string());
}

}  // namespace
}  // namespace cairn::base
