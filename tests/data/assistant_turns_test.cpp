// Conversations of several turns by templates that behave as those of the model families. Expected texts are written by hand, with the
// assistant's turns between « and »; masks of tokens are computed from them by byte offsets.
#include "data/chat/assistant_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/chat/template_renderer.h"
#include "data/corpus/tokenize.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "documents.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kSpecials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|user|>",
                                            "<|assistant|>", "<s>",          "</s>",       "[INST]",  "[/INST]",
                                            "<|eot|>",       "<turn>",       "</turn>",    "<think>", "</think>"};

const std::string kPlainTurns =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}";

// Qwen3: thoughts are dropped from all turns before the last question; the last answer has a block of thoughts even if it is empty. Tool
// messages are the user's.
const std::string kThinking =
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor "
    "%}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set thoughts = '' %}{% set said = m.content or '' %}"
    "{% if '</think>' in said %}{% set thoughts = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ '<|im_start|>assistant\\n' }}"
    "{% if loop.index0 > ns.last and (loop.last or thoughts) %}{{ '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}{% endif %}{{ said }}"
    "{% for call in m.tool_calls or [] %}{{ '<call>' + call.function | tojson + '</call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\\n<result>' + m.content + '</result><|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Phi-3: the end-of-text token ends the conversation, unless an answer is asked for.
const std::string kEndsOnce =
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{{ '<|assistant|>\\n' if add_generation_prompt else eos_token }}";

// Mistral: no generation prompt; an answer begins with a space and is trimmed; the system message stands in the last question, if it is
// the last message.
const std::string kSystemInLastQuestion =
    "{% set rest = messages %}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% endif %}{{ bos_token }}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + (system + '\\n\\n' if loop.last and system is defined else '') + m.content + '[/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}";

// Llama 3: contents are trimmed, and the first message follows the begin-of-text token.
const std::string kTrimmed =
    "{% for m in messages %}{{ bos_token if loop.first }}{{ '[' + m.role + ']\\n\\n' + m.content | trim + '<|eot|>' }}{% endfor %}"
    "{{ '[assistant]\\n\\n' if add_generation_prompt }}";

// Gemma: there is no system role, and the assistant is called model.
const std::string kNoSystem =
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '</turn>\\n' }}"
    "{% endfor %}{{ '<turn>model\\n' if add_generation_prompt }}";

const base::OrderedJson kVariables = {{"bos_token", "<s>"}, {"eos_token", "<|endoftext|>"}};

std::string message(const std::string& role, const std::string& content) {
  return base::compact(base::OrderedJson{{"role", role}, {"content", content}});
}

Conversation of(const std::vector<std::string>& messages) {
  Conversation made;
  for (const std::string& one : messages) made.messages.push_back(base::parse_ordered_json(one));
  return made;
}

const std::vector<std::string> kTwoQuestions = {message("user", "Hi there"), message("assistant", " Hü! \n"), message("user", "And now?"),
                                                message("assistant", "Bye.")};

std::vector<std::string> with_system(std::vector<std::string> messages) {
  messages.insert(messages.begin(), message("system", "Be kind."));
  return messages;
}

// The text with « before and » after each target.
std::string bracketed(const RenderedChat& chat) {
  std::string text;
  int64_t at = 0;
  for (const ByteRange& turn : chat.targets) {
    text += chat.text.substr(static_cast<size_t>(at), static_cast<size_t>(turn.first - at)) + "«";
    text += chat.text.substr(static_cast<size_t>(turn.first), static_cast<size_t>(turn.end - turn.first)) + "»";
    at = turn.end;
  }
  return text + chat.text.substr(static_cast<size_t>(at));
}

std::string bracketed(const std::string& chat_template, const std::vector<std::string>& messages) {
  return bracketed(ChatTemplate::parse(chat_template).render(of(messages), {.variables = kVariables}));
}

struct Family {
  const char* name;
  std::string chat_template;
  std::vector<std::string> messages;
  std::string expected;
};

std::vector<Family> families() {
  const std::vector<std::string> thoughtful = {message("user", "Hi"), message("assistant", "<think>\nwell\n</think>\n\nHo"),
                                               message("user", "?"), message("assistant", "<think>\nhm\n</think>\n\nYes")};
  return {
      {"ChatML", kPlainTurns, with_system(kTwoQuestions),
       "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n« Hü! \n<|im_end|>\n»"
       "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n«Bye.<|im_end|>\n»"},
      {"Qwen3", kThinking, with_system(kTwoQuestions),
       "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n« Hü! \n<|im_end|>\n»"
       "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nBye.<|im_end|>\n»"},
      {"Qwen3 with thoughts", kThinking, thoughtful,
       "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Ho<|im_end|>\n»<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
       "«<think>\nhm\n</think>\n\nYes<|im_end|>\n»"},
      {"Phi-3", kEndsOnce, kTwoQuestions,
       "<|user|>\nHi there<|end|>\n<|assistant|>\n« Hü! \n<|end|>\n»<|user|>\nAnd "
       "now?<|end|>\n<|assistant|>\n«Bye.<|end|>\n<|endoftext|>»"},
      {"Mistral", kSystemInLastQuestion, kTwoQuestions,
       "<s>[INST] Hi there[/INST]« Hü!<|endoftext|>»[INST] And now?[/INST]« Bye.<|endoftext|>»"},
      {"Mistral with a system message", kSystemInLastQuestion, with_system(kTwoQuestions),
       "<s>[INST] Hi there[/INST]« Hü!<|endoftext|>»[INST] And now?[/INST]« Bye.<|endoftext|>»"},
      {"Llama 3", kTrimmed, with_system(kTwoQuestions),
       "<s>[system]\n\nBe kind.<|eot|>[user]\n\nHi there<|eot|>[assistant]\n\n«Hü!<|eot|>»[user]\n\nAnd now?<|eot|>[assistant]\n\n"
       "«Bye.<|eot|>»"},
      {"Gemma", kNoSystem, kTwoQuestions,
       "<s><turn>user\nHi there</turn>\n<turn>model\n«Hü!</turn>\n»<turn>user\nAnd now?</turn>\n<turn>model\n«Bye.</turn>\n»"},
  };
}

TEST(AssistantTurns, OfEveryFamilyAreFoundInConversationsOfSeveralTurns) {
  for (const Family& one : families()) EXPECT_EQ(bracketed(one.chat_template, one.messages), one.expected) << one.name;
}

// The ids of the text without « and », and for each the flag that it lies between them.
std::pair<std::vector<int64_t>, std::vector<bool>> by_offsets(const std::string& expected, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<bool> inside;  // of each byte
  bool now = false;
  for (size_t at = 0; at < expected.size();) {
    const std::string_view rest = std::string_view(expected).substr(at);
    if (rest.starts_with("«") || rest.starts_with("»")) {
      now = rest.starts_with("«");
      at += 2;
      continue;
    }
    text += expected[at++];
    inside.push_back(now);
  }
  std::pair<std::vector<int64_t>, std::vector<bool>> result;
  size_t begin = 0;
  for (const int32_t id : tokenizer.encode(text)) {
    const size_t bytes = tokenizer.piece(id).size();
    for (size_t i = begin; i < begin + bytes; ++i) EXPECT_EQ(inside[i], inside[begin]) << "a token lies across a boundary";
    result.first.push_back(id);
    result.second.push_back(inside[begin]);
    begin += bytes;
  }
  EXPECT_EQ(begin, text.size());
  return result;
}

TEST(AssistantTurns, BecomeMasksOfTokensByTheirOffsets) {
  const std::string_view words = "Hi there Hi there, And now? And now Bye. Be kind. Be kind. user assistant system model user assistant";
  const auto tokenizer = make_bpe_tokenizer(train_bpe(std::span(&words, 1), {.vocab = 300, .specials = kSpecials}));
  for (const Family& one : families()) {
    std::string line = "{\"messages\": [";
    for (const std::string& each : one.messages) line += (line.ends_with('[') ? "" : ", ") + each;
    const Scratch scratch;
    const std::string path = scratch.write("x.jsonl", line + "]}\n");
    const auto image = std::make_shared<std::vector<std::byte>>();
    TokenWriter writer([&](std::span<const std::byte> more) { image->insert(image->end(), more.begin(), more.end()); },
                       tokenizer->vocab_size());
    const auto reader = make_line_reader(path, chunk_options_for(*tokenizer, {}));
    tokenize(*reader, *tokenizer, {.renderer = chat_renderer(ChatTemplate::parse(one.chat_template), {.variables = kVariables})}, writer);
    writer.finish({});
    const TokenStream row({read_tokens(*image, image, "a test")});
    auto [ids, targets] = by_offsets(one.expected, *tokenizer);
    if (ids.back() != tokenizer->end_of_text()) {  // it ends every document, and is no target where the template does not write it
      ids.push_back(tokenizer->end_of_text());
      targets.push_back(false);
    }
    EXPECT_EQ(ids_of(row), ids) << one.name;
    std::vector<int64_t> asked(ids.size(), 1);
    row.mask_non_targets(0, row.size(), asked.data());
    std::vector<bool> found;
    for (const int64_t target : asked) found.push_back(target == 1);
    EXPECT_EQ(found, targets) << one.name;
  }
}

TEST(AssistantTurns, ByMarkersAreThoseByPrefixesWhereBothAreFound) {
  for (const std::string& each : {kPlainTurns, kTrimmed, kNoSystem, kSystemInLastQuestion}) {
    const ChatTemplate chat_template = ChatTemplate::parse(each);
    const Conversation conversation = of(kTwoQuestions);
    const RenderMessages render = [&](const base::OrderedJson& messages, bool add_generation_prompt, int64_t&) {
      return chat_template.render_text({.messages = messages}, {.add_generation_prompt = add_generation_prompt, .variables = kVariables});
    };
    const RenderedChat chat = chat_template.render(conversation, {.variables = kVariables});
    EXPECT_EQ(find_turns_by_markers(chat.text, conversation.messages, false, render, "x"), chat.targets) << each;
  }
}

TEST(AssistantTurns, IncludeCallsOfToolsAndLeaveOutTheirResults) {
  const std::string call =
      R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]})";
  EXPECT_EQ(
      bracketed(kThinking, {message("user", "1+1?"), call, message("tool", "2"), message("assistant", "Two."), message("user", "Ok"),
                            message("assistant", "Bye")}),
      "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n«<call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</call><|im_end|>\n»"
      "<|im_start|>user\n<result>2</result><|im_end|>\n<|im_start|>assistant\n«Two.<|im_end|>\n»<|im_start|>user\nOk<|im_end|>\n"
      "<|im_start|>assistant\n«<think>\n\n</think>\n\nBye<|im_end|>\n»");
}

TEST(AssistantTurns, MayBeEmptyRepeatedOrLikeTheMarker) {
  EXPECT_EQ(bracketed(kEndsOnce, {message("user", "a"), message("assistant", ""), message("user", "b"), message("assistant", "b"),
                                  message("user", "cairnanswer"), message("assistant", "cairnanswer")}),
            "<|user|>\na<|end|>\n<|assistant|>\n«<|end|>\n»<|user|>\nb<|end|>\n<|assistant|>\n«b<|end|>\n»"
            "<|user|>\ncairnanswer<|end|>\n<|assistant|>\n«cairnanswer<|end|>\n<|endoftext|>»");
}

// The marker grows until it stands nowhere in the text; one letter at a time would take minutes here.
TEST(AssistantTurns, MayBeFullOfTheMarker) {
  const std::string said = "cairnanswer" + std::string(1'000'000, 'x');
  const std::string text =
      bracketed(kEndsOnce, {message("user", "a"), message("assistant", said), message("user", "b"), message("assistant", "c")});
  EXPECT_EQ(text, "<|user|>\na<|end|>\n<|assistant|>\n«" + said + "<|end|>\n»<|user|>\nb<|end|>\n<|assistant|>\n«c<|end|>\n<|endoftext|>»");
}

TEST(AssistantTurns, ThatTakeTooMuchWorkAreRefused) {
  base::OrderedJson messages = base::OrderedJson::array();
  for (int i = 0; i < 100; ++i) messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::to_string(i)}});
  int renderings = 0;
  const RenderMessages refuses_all = [&](const base::OrderedJson&, bool, int64_t& steps) -> std::string {
    ++renderings;
    steps += kTurnSteps / 4;
    throw Error(Error::Kind::bad_input, "no");
  };
  const RenderMessages writes_all = [&](const base::OrderedJson& some, bool, int64_t& steps) {
    ++renderings;
    steps += kTurnSteps / 4;
    std::string text;
    for (const auto& one : some) text += one["content"].get<std::string>() + ";";
    return text;
  };
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + ";";
  EXPECT_EQ(
      refusal([&] { find_assistant_turns(text, messages, false, writes_all, "x"); }),
      "x: the conversation has too many turns for this template: finding those of the assistant takes more than 100000000 steps. Mark "
      "them in the template with {% generation %} ... {% endgeneration %}, or divide the conversation.");
  EXPECT_EQ(renderings, 5);
  renderings = 0;
  EXPECT_THROW(find_assistant_turns(text, messages, false, refuses_all, "x"), Error);
  EXPECT_LE(renderings, 5);
}

TEST(AssistantTurns, ThatTheTemplateDropsOrRepeatsAreRefusedByNumber) {
  const std::string forgets =
      "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else 'x' }}{% endfor %}{{ '[assistant]' if add_generation_prompt }}";
  EXPECT_EQ(
      refusal([&] { bracketed(forgets, kTwoQuestions); }),
      "chat_template: message 2, of the assistant, cannot be found in the rendered conversation: the template does not write its text "
      "exactly once. Mark it in the template with {% generation %} ... {% endgeneration %}.");
  const std::string counts = "{% for m in messages %}{{ loop.length }}{{ messages[1].content | length }}{{ m.content }};{% endfor %}";
  EXPECT_THAT(refusal([&] { bracketed(counts, kTwoQuestions); }), HasSubstr("its text changes what the template writes around it"));
}

TEST(AssistantTurns, OfATemplateWithoutSystemMessagesAreRefusedInItsOwnWords) {
  EXPECT_EQ(refusal([] { bracketed(kNoSystem, with_system(kTwoQuestions)); }),
            "chat_template, line 1: the template refuses this conversation: System role not supported");
}

TEST(AssistantTurns, BeginWithTheContentWhereTheGenerationPromptIsNotHowAnswersBegin) {
  const std::string begins_thinking =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{{ '<assistant><think>' if add_generation_prompt }}";
  EXPECT_EQ(bracketed(begins_thinking, kTwoQuestions), "<user>Hi there;<assistant>« Hü! \n;»<user>And now?;<assistant>«Bye.;»");
}

}  // namespace
}  // namespace cairn::data
