// `cairn data`, as a user runs it.
#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

TEST(DataCommand, ShowsWhatFilesHold) {
  const harness::ScratchFolder scratch;
  scratch.file("chat.jsonl",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello\"}]}\noops\n");
  const Outcome outcome = cairn(scratch, {"data", "inspect", "chat.jsonl", "--set", "data.template=plain"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* said : {"jsonl", "1 document, 22 B of text, 81.8 % of it training targets, 1 bad line\n",
                           "bad: chat.jsonl:2: invalid JSON at byte 1", "[Hi\n\n]Hello<|endoftext|>"})
    EXPECT_NE(outcome.output.find(said), std::string::npos) << said << "\nsaid: " << outcome.output;
}

TEST(DataCommand, WritesAShardThatTrainsAsTheTextDoes) {
  const harness::ScratchFolder scratch;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "The hare number " + std::to_string(i * 37) + " ran home.\n";
  scratch.file("text.txt", text);
  const Outcome made = cairn(scratch, {"data", "tokenize", "text.txt", "--out", "text.tokens", "--set", "data.vocab=260"});
  ASSERT_EQ(made.code, 0) << made.output;
  EXPECT_NE(made.output.find("text.tokens: "), std::string::npos) << made.output;
  ASSERT_EQ(cairn(scratch, tiny({"train", "--data", "text.txt", "--out", "a", "--set", "train.steps=3"})).code, 0);
  const Outcome trained = cairn(scratch, tiny({"train", "--data", "text.tokens", "--out", "b", "--set", "train.steps=3", "--set",
                                               "data.tokenizer_file=text.tokens.tokenizer.json"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(losses_in(scratch / "a"), losses_in(scratch / "b"));
}

}  // namespace
}  // namespace cairn::cli
