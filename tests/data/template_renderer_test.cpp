#include "data/chat/template_renderer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ChatTemplate kTurns = ChatTemplate::parse(
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{{ '<assistant>' if "
    "add_generation_prompt }}");

TEST(ChatRenderer, CutsTheTextWhereTheAssistantSpeaks) {
  const Renderer renderer = chat_renderer(kTurns, {.variables = {{"bos_token", "^"}, {"eos_token", "$"}}});
  const std::vector<ChatMessage> messages = {{"user", "Hi"}, {"assistant", "Ho"}, {"user", "?"}};
  EXPECT_THAT(renderer.render(messages),
              ElementsAre(TextSegment{"^<user>Hi$<assistant>", false}, TextSegment{"Ho$", true}, TextSegment{"<user>?$", false}));
}

TEST(ChatRenderer, NamesAllThatDecidesTheText) {
  const std::string one = chat_renderer(kTurns, {.variables = {{"eos_token", "$"}}}).identity;
  EXPECT_EQ(one, chat_renderer(kTurns, {.variables = {{"eos_token", "$"}}}).identity);
  EXPECT_NE(one, chat_renderer(kTurns, {.variables = {{"eos_token", "%"}}}).identity);
  EXPECT_NE(one, chat_renderer(ChatTemplate::parse("x"), {.variables = {{"eos_token", "$"}}}).identity);
}

TEST(ChatRenderer, TakesNoDate) {
  EXPECT_THAT(refusal([] { chat_renderer(kTurns, {.date = [](const std::string&) { return std::string(); }}); }),
              HasSubstr("takes no date"));
}

}  // namespace
}  // namespace cairn::data
