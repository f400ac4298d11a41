#include "data/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "data/tokenizer.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "scratch.h"

namespace cairn::data {
namespace {

Bpe small_json_bpe() {
  const std::string_view text = "the cat and the hat and the \"bat\"\n\\ \t \xc3\xa9\xc3\xa9";
  return train_bpe(std::span(&text, 1), {.vocab = 300});
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(TokenizerJson, ReadsBackWhatItWrote) {
  const Bpe bpe = small_json_bpe();
  ASSERT_GT(bpe.merges.size(), 5u);
  EXPECT_EQ(read_tokenizer_json(write_tokenizer_json(bpe), "x.json"), bpe);
}

TEST(TokenizerJson, ReadsBackTheByteTokenizer) {
  const auto bytes = make_byte_tokenizer();
  const auto again = make_bpe_tokenizer(read_tokenizer_json(bytes->json(), "x.json"));
  const std::string text = "it's  <|endoftext|>\n here";
  EXPECT_EQ(again->encode(text), bytes->encode(text));
  EXPECT_EQ(again->json(), bytes->json());
}

// The file was written by the PyPI package `tokenizers` 0.23, trained there on a few lines of ours; the ids are the ones it gave.
TEST(TokenizerJson, GivesTheIdsOfTheTokenizersLibrary) {
  const std::string path = fmt::format("{}/tests/data/hugging_face_tokenizer.json", CAIRN_SOURCE_DIR);
  const auto tokenizer = make_bpe_tokenizer(read_tokenizer_json(base::read_file(path, 1 << 20), path));
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  const std::string text = "The mouse can't see the moon  yet.\n\n 12 moons,\t3 mice!<|endoftext|> I'll wait";
  EXPECT_EQ(tokenizer->encode(text),
            (std::vector<int32_t>{269, 267, 221, 292, 285, 261, 69,  69, 266, 278, 221, 221, 89,  69,  84, 14,  199, 199,
                                  277, 278, 83,  12,  198, 19,  221, 77, 73,  291, 1,   0,   298, 284, 76, 276, 270, 84}));
}

TEST(TokenizerJson, AcceptsMergesAsPairs) {
  const Bpe bpe = small_json_bpe();
  std::string text = write_tokenizer_json(bpe);
  text = replaced(text, "\"a t\"", "[\"a\", \"t\"]");
  EXPECT_EQ(read_tokenizer_json(text, "x.json"), bpe);
}

TEST(TokenizerJson, RefusesEveryBrokenFileBySayingWhatIsWrong) {
  const std::string good = write_tokenizer_json(small_json_bpe());
  const auto says = [](const std::string& text) { return refusal([&] { read_tokenizer_json(text, "x.json"); }); };
  const auto with = [&](const std::string& from, const std::string& to) { return says(replaced(good, from, to)); };
  EXPECT_EQ(says(""), "x.json: it is empty");
  EXPECT_EQ(says("[1, 2]"), "x.json: holds no JSON object: not a tokenizer.json");
  EXPECT_EQ(says("{}"), "x.json: has no \"model\" object: not a tokenizer.json of a BPE");
  EXPECT_EQ(says(std::string(100000, '[')), "x.json: nested more than 16 deep: not a tokenizer.json");
  EXPECT_EQ(with("\"BPE\"", "\"Unigram\""),
            "x.json: model type \"Unigram\": only BPE can be read (a SentencePiece tokenizer.model of this kind can)");
  EXPECT_EQ(with("\"BPE\"", "\"WordPiece\""), "x.json: model type \"WordPiece\": only BPE can be read");
  EXPECT_EQ(with("\"dropout\": null", "\"dropout\": 0.1"), "x.json: model.dropout is set: ids would be random");
  EXPECT_EQ(with("\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\""),
            "x.json: model.end_of_word_suffix is set: not supported");
  EXPECT_EQ(with("\"byte_fallback\": false", "\"byte_fallback\": 1"), "x.json: model.byte_fallback is 1: must be true or false");
  EXPECT_EQ(with("\"lstrip\": false", "\"lstrip\": 1"), "x.json: added token \"<|endoftext|>\" has lstrip 1: must be true or false");
  EXPECT_EQ(with("\"version\"", "\"model\""), "x.json: the key \"model\" stands twice in one object");
  EXPECT_EQ(with("\"!\": 33", "\"\\\"\": 33"), "x.json: the key \"\\\"\" stands twice in one object");
  EXPECT_EQ(with("\"<|endoftext|>\": 2", "\"<|endoftext|>\": 7"),
            fmt::format("x.json: \"<|endoftext|>\" has id 7{} in the vocabulary and {} among the added tokens",
                        std::to_string(small_json_bpe().added[0].id).substr(1), small_json_bpe().added[0].id));
  EXPECT_EQ(with("\"added_tokens\": [", "\"added_tokens\": 3, \"others\": ["), "x.json: \"added_tokens\" is no list");
  EXPECT_EQ(with("\"content\": \"<|endoftext|>\"", "\"content\": \"\""), "x.json: an added token is empty");
  EXPECT_EQ(with("\"!\": 33", "\"!\": 34"), "x.json: id 34 is given twice, the second time to \"\"\"");
  EXPECT_EQ(with("\"!\": 33", "\"!\": -1"), "x.json: \"!\" has id -1: must be 0 to 1048575");
  EXPECT_EQ(with("\"!\": 33", "\"!\": 99999999999999"), "x.json: \"!\" has id 99999999999999: must be 0 to 1048575");
  EXPECT_EQ(with("\"!\": 33", "\"!\": 500"), "x.json: id 33 is missing: ids must run from 0 without a hole");
  EXPECT_EQ(with("\"!\": 33", "\"!!\": 33"), "x.json: no piece for byte 0x21: not a byte-level BPE");
  EXPECT_EQ(with("\"!\": 33", "\"\u20ac\": 33"), "x.json: no piece for byte 0x21: not a byte-level BPE");
  EXPECT_EQ(with("\"a t\"", "\"t\""), "x.json: merge \"t\" is not two pieces");
  EXPECT_EQ(with("\"a t\"", "\"t zz\""), "x.json: merge \"t zz\" needs the piece \"zz\", which is not in the vocabulary");
  EXPECT_EQ(with("\"merges\"", "\"mergers\""), "x.json: has no \"merges\" list");
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string good = write_tokenizer_json(small_json_bpe());
  for (size_t length = 0; length + 2 < good.size(); length += 97)
    EXPECT_NE(refusal([&] { read_tokenizer_json(good.substr(0, length), "x.json"); }), "") << length;
}

}  // namespace
}  // namespace cairn::data
