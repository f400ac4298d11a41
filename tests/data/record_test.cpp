#include "data/corpus/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::data {
namespace {

using Messages = std::vector<ChatMessage>;

Record good(const std::string& json, const std::string& text_field = "text") {
  Record record;
  EXPECT_EQ(parse_record(json, text_field, record), "") << json;
  return record;
}

std::string why(const std::string& json) {
  Record record;
  return parse_record(json, "text", record);
}

TEST(Records, MayBeTexts) {
  const Record record = good(R"({"text": "one \u00fc", "url": "x", "n": [1, {"a": 2}]})");
  EXPECT_EQ(record.kind, Record::Kind::text);
  EXPECT_EQ(record.text, "one \xc3\xbc");
  EXPECT_EQ(good(R"({"content": "two", "text": 5})", "content").text, "two");
}

// KTO's data: to train on a rejected answer as on a chosen one would teach the opposite.
TEST(Records, MayNotBeRejectedAnswersAlone) {
  for (const char* json : {R"({"prompt": "q", "completion": "a", "label": false})", R"({"prompt": "q", "response": "a", "label": false})"})
    EXPECT_EQ(why(json),
              "\"label\" is false: a rejected answer without its chosen one (KTO's data), which is not supported. Use preference pairs "
              "(\"chosen\" and \"rejected\", data.kind = \"preference\"), or train on the records with \"label\": true alone");
  EXPECT_EQ(good(R"({"prompt": "q", "completion": "a", "label": true})").messages, (Messages{{"user", "q"}, {"assistant", "a"}}));
  EXPECT_EQ(good(R"({"text": "t", "label": false})").text, "t");
}

TEST(Records, MayBeConversationsOfEachForm) {
  const Messages pair = {{"user", "q"}, {"assistant", "a"}};
  for (const char* json :
       {R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
        R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": ""})",
        R"({"instruction": "q", "input": "", "output": "a"})", R"({"instruction": "q", "output": "a"})",
        R"({"prompt": "q", "completion": "a"})", R"({"prompt": "q", "response": "a"})", R"({"question": "q", "answer": "a"})"}) {
    const Record record = good(json);
    EXPECT_EQ(record.kind, Record::Kind::messages) << json;
    EXPECT_EQ(record.messages, pair) << json;
  }
  EXPECT_EQ(good(R"({"instruction": "q", "input": "i", "output": "a", "system": "s"})").messages,
            (Messages{{"system", "s"}, {"user", "q\n\ni"}, {"assistant", "a"}}));
}

TEST(Records, MayBePreferencesOfEachForm) {
  const Messages chosen = {{"user", "q"}, {"assistant", "good"}};
  const Messages rejected = {{"user", "q"}, {"assistant", "bad"}};
  for (
      const char* json :
      {R"({"prompt": "q", "chosen": "good", "rejected": "bad"})",
       R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "good"}, "rejected": {"from": "gpt", "value": "bad"}})",
       R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "good"}], "rejected": [{"role": "assistant", "content": "bad"}]})",
       R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}], "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]})"}) {
    const Record record = good(json);
    EXPECT_EQ(record.kind, Record::Kind::preference) << json;
    EXPECT_EQ(record.messages, chosen) << json;
    EXPECT_EQ(record.rejected, rejected) << json;
  }
}

TEST(Records, SayWhatIsWrongWithThem) {
  EXPECT_EQ(why(R"({"text": "a)"), "invalid JSON: a string begins at byte 10 and has no end");
  EXPECT_EQ(why("{\"text\": \"a\xff\"}"), "invalid UTF-8 at byte 12");
  EXPECT_EQ(why("[1]"), "not a JSON object but an array");
  EXPECT_EQ(why("17"), "not a JSON object but a number");
  EXPECT_EQ(why(R"({"n": 1e999})"), "invalid JSON: a number that is too large for any");
  EXPECT_EQ(why(R"({"text": 3})"), "field \"text\" holds a number, not a string");
  EXPECT_EQ(why(R"({"text": ["a"]})"), "field \"text\" holds an array, not a string");
  EXPECT_EQ(why(R"({})"),
            "no field \"text\", \"messages\", \"instruction\" with \"output\", or \"chosen\" with \"rejected\" (it has: none)");
  EXPECT_EQ(why(R"({"b": 1, "a": 2})"),
            "no field \"text\", \"messages\", \"instruction\" with \"output\", or \"chosen\" with \"rejected\" (it has: a, b)");
  EXPECT_EQ(why(R"({"messages": "hi"})"), "field \"messages\" holds a string, not a list of messages");
  EXPECT_EQ(why(R"({"messages": []})"), "field \"messages\" is empty");
  EXPECT_EQ(why(R"({"messages": ["hi"]})"), "field \"messages\" holds a string, not messages");
  EXPECT_EQ(why(R"({"messages": [{"role": "user"}]})"), "no field \"content\"");
  EXPECT_EQ(why(R"({"messages": [{"content": "x"}]})"), "no field \"role\"");
  EXPECT_THAT(why(R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]})"),
              testing::HasSubstr("\"tool_calls\", which would be lost"));
  EXPECT_EQ(why(R"({"prompt": "q", "chosen": "a"})"), "no field \"rejected\" beside \"chosen\"");
  EXPECT_EQ(why(R"({"prompt": "q", "chosen": "a", "rejected": 1})"), "field \"rejected\" holds a number, not a string");
}

TEST(Records, NestedAMillionDeepAreRefusedAtOnce) {
  EXPECT_EQ(why(std::string(1'000'000, '[')), "JSON nested more than 64 deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(why(objects), "JSON nested more than 64 deep");
}

}  // namespace
}  // namespace cairn::data
