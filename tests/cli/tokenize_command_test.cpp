#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

std::string says(const harness::ScratchFolder& scratch, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "tokenize");
  const Outcome outcome = cairn(scratch, arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return outcome.output;
}

TEST(TokenizeCommand, LearnsATokenizerAndGoesThereAndBack) {
  const harness::ScratchFolder scratch;
  scratch.file("text.txt", "ab ab ab abc\n");
  EXPECT_EQ(says(scratch, {"train", "text.txt", "--vocab", "259", "--out", "t.json"}), "t.json: 259 tokens, 2 merges\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--text", "ab ab<|endoftext|>"}), "256 257 258\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "text.txt", "--count"}), "6 tokens, 13 bytes, 2.17 bytes/token  text.txt\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--json", "--text", "ab\xff"}),
            "{\"text\":\"--text\",\"ids\":[256,255],\"pieces\":[\"ab\",\"\uFFFD\"]}\n");
  scratch.file("ids.txt", "[256, 257]\n99");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--decode", "ids.txt"}), "ab abc\n");
  scratch.file("lines.txt", "\"ab\\n\"\n\"\"\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--lines", "lines.txt"}), "[256,10]\n[]\n");
  scratch.file("id_lines.txt", "[256,10]\n[]\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--lines", "--decode", "id_lines.txt"}), "\"ab\\n\"\n\"\"\n");
  EXPECT_EQ(says(scratch, {"--tokenizer", "t.json", "--tokenizer-json"}), scratch.text_of("t.json"));
}

TEST(TokenizeCommand, RefusesWhatItCannotDo) {
  const harness::ScratchFolder scratch;
  scratch.file("bad.txt", "1 2 x3");
  scratch.file("bad.jsonl", "\"a\"\n7\n");
  ASSERT_EQ(cairn(scratch, {"tokenize", "train", "--vocab", "300", "--out", "t.json"}).code, 0);
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "tokenize");
    const Outcome outcome = cairn(scratch, arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  };
  EXPECT_NE(refused({"--text", "a"}).find("needs --tokenizer"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--decode", "bad.txt"}).find("bad.txt: \"x3\" is not a token id"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--lines", "bad.jsonl"}).find("bad.jsonl:2: not a JSON text"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--lines", "--decode", "bad.jsonl"}).find("bad.jsonl:1: not a JSON list"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--json", "--count"}).find("give one of"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--lines", "--count"}).find("--lines goes with"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "t.json", "--text", "a", "bad.txt"}).find("give one or the other"), std::string::npos);
  EXPECT_NE(refused({"--tokenizer", "none.json", "--text", "a"}).find("none.json"), std::string::npos);
  EXPECT_NE(refused({"train", "--vocab", "257", "--special", "<a>", "--special", "<b>", "--out", "u.json"}).find("must fit"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::cli
