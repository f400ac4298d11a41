// Chat templates as models have them, and whose words in the text are whose. Expected texts are those of Jinja2 as transformers sets it up.
#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

Conversation chat_of(const std::string& messages, const std::string& tools = "null") {
  return {.messages = base::parse_ordered_json(messages), .tools = base::parse_ordered_json(tools)};
}

const Conversation kTwoTurns =
    chat_of(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hü!"}, {"role": "user", "content": "And?"},
             {"role": "assistant", "content": "Bye."}])");

std::vector<std::string> targets(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const ByteRange& range : chat.targets)
    texts.push_back(chat.text.substr(static_cast<size_t>(range.first), static_cast<size_t>(range.end - range.first)));
  return texts;
}

TEST(ChatTemplate, RendersChatml) {
  const ChatTemplate chatml = ChatTemplate::parse(kChatml);
  EXPECT_EQ(chatml.render_text(chat_of(R"([{"role": "user", "content": "Hi"}])"), {.add_generation_prompt = true}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chatml.render_text(chat_of("[]"), {}), "");
}

TEST(ChatTemplate, RendersToolsAndCallsInTheOrderOfTheirKeys) {
  const ChatTemplate tools = ChatTemplate::parse(
      "{%- if tools %}\n    {%- for tool in tools %}\n        {{- tool | tojson }}\n    {%- endfor %}\n{%- endif %}\n"
      "{%- for m in messages if m.tool_calls %}\n{{- m.tool_calls[0].function.arguments | tojson(indent=2) }}\n{%- endfor %}");
  EXPECT_EQ(tools.render_text(chat_of(R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": {"z": [1, 2.5], "a": "é<"}}}]}])",
                                      R"([{"type": "function", "name": "f"}])"),
                              {}),
            "{\"type\": \"function\", \"name\": \"f\"}{\n  \"z\": [\n    1,\n    2.5\n  ],\n  \"a\": \"é<\"\n}");
}

TEST(ChatTemplate, SeesNoneForToolsAndTheVariablesGiven) {
  const ChatTemplate names = ChatTemplate::parse("{{ tools is none }} {{ bos_token }} {{ enable_thinking }} {{ strftime_now is defined }}");
  EXPECT_EQ(names.render_text(chat_of("[]"), {.variables = {{"bos_token", "<s>"}, {"enable_thinking", false}}}), "True <s> False False");
}

TEST(ChatTemplate, TakesADateOnlyFromItsCaller) {
  const ChatTemplate dated = ChatTemplate::parse("{{ strftime_now('%d %b') }}");
  EXPECT_EQ(dated.render_text(chat_of("[]"), {.date = [](const std::string& format) { return "<" + format + ">"; }}), "<%d %b>");
  EXPECT_THAT(refusal([&] { dated.render_text(chat_of("[]"), {}); }),
              HasSubstr("line 1: asks for the date (strftime_now), and none is given. Set data.template_date."));
}

TEST(ChatTargets, AreWhatTheTemplateMarksAsGenerated) {
  const ChatTemplate marked = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}"
      "{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_TRUE(marked.marks_generation());
  const RenderedChat chat = marked.render(kTwoTurns, {});
  EXPECT_EQ(chat.text, "<user>Hi<assistant>Hü!</s><user>And?<assistant>Bye.</s>");
  EXPECT_THAT(targets(chat), ElementsAre("Hü!</s>", "Bye.</s>"));
}

TEST(ChatTargets, AreFoundByWhatEachAnswerAdds) {
  const RenderedChat chat = ChatTemplate::parse(kChatml).render(kTwoTurns, {});
  EXPECT_EQ(chat.text.size(), 136u);
  EXPECT_THAT(targets(chat), ElementsAre("Hü!<|im_end|>\n", "Bye.<|im_end|>\n"));
}

TEST(ChatTargets, AreRefusedWhereTheMarkLiesInAMacro) {
  const ChatTemplate hidden =
      ChatTemplate::parse("{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{{ say(messages[1]) }}");
  EXPECT_THAT(refusal([&] { hidden.render(kTwoTurns, {}); }), HasSubstr("{% generation %} inside a macro"));
}

TEST(ChatConversation, IsCheckedBeforeItIsRendered) {
  const ChatTemplate chatml = ChatTemplate::parse(kChatml);
  EXPECT_EQ(refusal([&] { chatml.render_text(chat_of("{}"), {}); }), "chat_template: the messages are no list");
  EXPECT_EQ(refusal([&] { chatml.render_text(chat_of("[{\"content\": \"x\"}]"), {}); }),
            "chat_template: message 1 has no \"role\" that is a string");
  EXPECT_EQ(refusal([&] { chatml.render_text(chat_of("[]", "3"), {}); }), "chat_template: the tools are no list");
  EXPECT_EQ(refusal([&] { chatml.render_text(chat_of("[]"), {.variables = 3}); }), "chat_template: the variables are no JSON object");
}

TEST(ChatConversation, CannotBeNestedWithoutEnd) {
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  const Conversation nested = chat_of("[{\"role\": \"user\", \"content\": " + deep + "}]");
  EXPECT_THAT(refusal([&] { ChatTemplate::parse(kChatml).render_text(nested, {}); }), HasSubstr("more than 100 deep"));
}

}  // namespace
}  // namespace cairn::data
