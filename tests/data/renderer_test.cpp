#include "data/chat/renderer.h"

#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}, {"assistant", "So long"}};

std::string text_of(const std::vector<TextSegment>& parts, bool targets_only) {
  std::string text;
  for (const TextSegment& part : parts)
    if (part.is_target || !targets_only) text += part.text + (targets_only ? "|" : "");
  return text;
}

TEST(Render, ChatmlAsksForWhatTheAssistantSaysAndItsEnd) {
  const auto parts = make_renderer("chatml").render(kTalk);
  EXPECT_EQ(text_of(parts, false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo long<|im_end|>\n");
  EXPECT_EQ(text_of(parts, true), "Hello<|im_end|>|So long<|im_end|>|");
}

TEST(Render, AlpacaPutsTheInstructionBeforeTheResponse) {
  const std::vector<ChatMessage> one = {{"user", "Add 1 and 2."}, {"assistant", "3"}};
  const auto parts = make_renderer("alpaca").render(one);
  EXPECT_EQ(text_of(parts, false),
            "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nAdd 1 and 2.\n\n### Response:\n3<|endoftext|>");
  EXPECT_EQ(text_of(parts, true), "3<|endoftext|>|");
  EXPECT_EQ(text_of(make_renderer("alpaca", "</s>").render(kTalk), false),
            "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello</s>\n\n### Instruction:\nBye\n\n### Response:\nSo long</s>");
}

TEST(Render, PlainIsTheContents) {
  const auto parts = make_renderer("plain").render(kTalk);
  EXPECT_EQ(text_of(parts, false), "Be brief.\n\nHi\n\nHello<|endoftext|>\n\nBye\n\nSo long<|endoftext|>");
  EXPECT_EQ(text_of(parts, true), "Hello<|endoftext|>|So long<|endoftext|>|");
}

TEST(Render, MayAskForEverything) {
  for (const BuiltInTemplate& one : built_in_templates()) {
    const Renderer some = make_renderer(one.name);
    const Renderer all = all_targets(some);
    EXPECT_NE(all.identity, some.identity);
    EXPECT_EQ(all.markers, some.markers);
    EXPECT_EQ(text_of(all.render(kTalk), false), text_of(some.render(kTalk), false));
    for (const TextSegment& part : all.render(kTalk)) EXPECT_TRUE(part.is_target);
  }
}

TEST(Render, RefusesAnUnknownNameAndGuessesWhatWasMeant) {
  EXPECT_EQ(refusal([] { make_renderer("chatlm"); }), "unknown data.template \"chatlm\": did you mean \"chatml\"?");
}

}  // namespace
}  // namespace cairn::data
