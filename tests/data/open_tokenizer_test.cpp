// Tokenizer files of every kind, good and bad, made here.
#include "data/tokenizer/open_tokenizer.h"

#include <cstring>

#include <gtest/gtest.h>

#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/byte_to_unicode.h"
#include "data/tokenizer/gpt2_files.h"
#include "data/tokenizer/llama2c_tokenizer.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/sentencepiece_json.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "scratch.h"

namespace cairn::data {
namespace {

Bpe small_bpe() {
  const std::string_view text = "the cat and the hat and the bat";
  return train_bpe(std::span(&text, 1), {.vocab = 270});
}

std::string vocab_json(const Bpe& bpe) {
  base::Json vocab;
  for (size_t id = 0; id < bpe.pieces.size(); ++id) vocab[bytes_to_unicode(bpe.pieces[id])] = id;
  return base::compact(vocab);
}

std::string merges_text(const Bpe& bpe) {
  std::string text = "#version: 0.2\n";
  for (const Merge& merge : bpe.merges)
    text += bytes_to_unicode(bpe.pieces[merge.left]) + " " + bytes_to_unicode(bpe.pieces[merge.right]) + "\n";
  return text;
}

TEST(OpenTokenizer, ReadsGpt2sTwoFilesByEitherName) {
  const Scratch scratch;
  scratch.write("vocab.json", vocab_json(small_bpe()));
  scratch.write("merges.txt", merges_text(small_bpe()));
  scratch.write("gpt2-encoder.json", vocab_json(small_bpe()));
  scratch.write("gpt2-vocab.bpe", merges_text(small_bpe()));
  const std::string text = "the cat's hat<|endoftext|>";
  const std::vector<int32_t> expected = make_bpe_tokenizer(small_bpe())->encode(text);
  for (const char* name : {"", "vocab.json", "merges.txt", "gpt2-encoder.json", "gpt2-vocab.bpe"})
    EXPECT_EQ(open_tokenizer(scratch.path(name))->encode(text), expected) << name;
}

TEST(OpenTokenizer, RefusesBrokenGpt2Files) {
  const auto says = [](const std::string& vocab, const std::string& merges) {
    return refusal([&] { read_gpt2_files(vocab, "v.json", merges, "m.txt"); });
  };
  const std::string good = vocab_json(small_bpe());
  EXPECT_EQ(says("[1]", ""), "v.json: holds no JSON object of pieces and ids: not a GPT-2 vocabulary");
  EXPECT_EQ(says("{\"a\": 1, \"a\": 2}", ""), "v.json: the piece \"a\" stands twice");
  EXPECT_EQ(says(good, "#version\nt h\nab\n"), "m.txt:3: not two pieces with a space between them");
  EXPECT_EQ(says(good, "t h e\n"), "m.txt:1: not two pieces with a space between them");
  EXPECT_EQ(says(good, "q q\n"), "v.json: merge [\"q\",\"q\"] needs the piece \"qq\", which is not in the vocabulary");
}

TEST(OpenTokenizer, KeepsTheTextOfATokenizerJson) {
  const Scratch scratch;
  const std::string json = write_tokenizer_json(small_bpe()) + "\n\n";
  const auto tokenizer = open_tokenizer(scratch.write("tokenizer.json", json));
  EXPECT_EQ(tokenizer->json(), json);
  EXPECT_EQ(open_tokenizer(scratch.path())->json(), json);
}

TEST(OpenTokenizer, SaysWhatAFolderShouldHold) {
  const Scratch scratch;
  EXPECT_EQ(
      refusal([&] { open_tokenizer(scratch.path()); }),
      scratch.path() + ": holds no tokenizer (tokenizer.json, tokenizer.model, vocab.json with merges.txt, encoder.json with vocab.bpe)");
}

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string llama2c_piece(float score, const std::string& text) { return raw(score) + raw(static_cast<int32_t>(text.size())) + text; }

std::string llama2c_bytes() {
  std::string file = raw(int32_t{7}) + llama2c_piece(0, "<unk>") + llama2c_piece(0, "\n<s>\n") + llama2c_piece(0, "\n</s>\n");
  for (int byte = 0; byte < 256; ++byte) file += llama2c_piece(0, byte_piece(byte));
  return file;
}

TEST(Llama2cTokenizer, GivesTheIdsOfItsScores) {
  std::string file = llama2c_bytes();
  const char* texts[] = {" t", "he", " the", " ", "t", "h", "e", "\u00e9"};  // from 259 on
  for (int i = 0; i < 8; ++i) file += llama2c_piece(static_cast<float>(-i), texts[i]);
  const auto tokenizer = make_bpe_tokenizer(read_llama2c_tokenizer(file, "t.bin"));
  EXPECT_EQ(tokenizer->vocab_size(), 267);
  EXPECT_EQ(tokenizer->encode("the \u00e9x", {.add_special = true}), (std::vector<int32_t>{1, 261, 262, 266, 3 + 'x'}));
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  // And the same from the tokenizer.json that is written of it.
  const Bpe again = read_tokenizer_json(tokenizer->json(), "x.json");
  EXPECT_EQ(again, read_llama2c_tokenizer(file, "t.bin"));
}

TEST(Llama2cTokenizer, RefusesEveryBrokenFile) {
  const auto says = [](const std::string& bytes) { return refusal([&] { read_llama2c_tokenizer(bytes, "t.bin"); }); };
  EXPECT_EQ(says("abc"), "t.bin: ends within the header, at byte 0: not a tokenizer of llama2.c");
  EXPECT_EQ(says(raw(int32_t{-1})), "t.bin: says that its longest piece has -1 bytes, must be 1 to 256: not a tokenizer of llama2.c");
  EXPECT_EQ(says(raw(int32_t{7})), "t.bin: 0 pieces, and the first 259 are fixed: not a tokenizer of llama2.c");
  EXPECT_EQ(says(raw(int32_t{7}) + raw(0.f) + raw(int32_t{8})), "t.bin: piece 0 has 8 bytes, must be 1 to 7");
  EXPECT_EQ(says(raw(int32_t{7}) + raw(0.f) + raw(int32_t{5}) + "ab"),
            "t.bin: ends within a piece, at byte 12: not a tokenizer of llama2.c");
  EXPECT_EQ(says(raw(int32_t{7}) + raw(std::numeric_limits<float>::quiet_NaN()) + raw(int32_t{5})), "t.bin: piece 0 has the score nan");
  EXPECT_EQ(says(llama2c_bytes() + llama2c_piece(0, "a") + llama2c_piece(0, "a")), "t.bin: piece 260, \"a\", stands twice");
  std::string wrong = llama2c_bytes();
  wrong.replace(wrong.find("<0x41>"), 6, "<0x4g>");
  EXPECT_EQ(says(wrong), "t.bin: piece 68 is \"<0x4g>\", and should stand for a byte: <0x41>");
}

// A SentencePiece model as a protocol buffer, field by field.
std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string sp_piece(const std::string& text, float score, int kind) {
  return field(1, field(1, text) + std::string(1, 2 << 3 | 5) + raw(score) + std::string(1, 3 << 3) + static_cast<char>(kind));
}
std::string sp_model(int kind) {
  std::string bytes = sp_piece("<unk>", 0, 2) + sp_piece("<s>", 0, 3) + sp_piece("</s>", 0, 3);
  const char* texts[] = {"\u2581t", "he", "\u2581the", "\u2581", "t", "h", "e", "\u00e9"};
  for (int i = 0; i < 8; ++i) bytes += sp_piece(texts[i], static_cast<float>(-i), 1);
  return bytes + field(2, std::string(1, 3 << 3) + static_cast<char>(kind)) +
         field(3, field(1, "identity") + std::string(1, 4 << 3) + std::string(1, '\0'));  // spaces are left alone
}

TEST(SentencepieceModel, ReadsPiecesScoresAndKinds) {
  const SentencepieceModel model = read_sentencepiece_model(sp_model(2), "t.model");
  EXPECT_EQ(model.kind, SentencepieceModel::Kind::bpe);
  ASSERT_EQ(model.pieces.size(), 11u);
  EXPECT_EQ(model.pieces[5].text, "\u2581the");
  EXPECT_EQ(model.pieces[5].score, -2);
  EXPECT_EQ(model.pieces[2].kind, ScoredPiece::Kind::control);
  EXPECT_EQ(model.normalizer, "identity");
  EXPECT_TRUE(model.add_dummy_prefix);
  EXPECT_FALSE(model.remove_extra_whitespaces);
}

TEST(SentencepieceModel, RefusesWhatIsNone) {
  const auto says = [](const std::string& bytes) { return refusal([&] { read_sentencepiece_model(bytes, "t.model"); }); };
  EXPECT_EQ(says(""), "t.model: not a SentencePiece model (it has no pieces)");
  EXPECT_EQ(says("no protocol buffer"), "t.model: not a SentencePiece model");
  EXPECT_EQ(says(sp_piece("", 0, 1)), "t.model: piece 0 is empty");
  EXPECT_EQ(says(sp_piece("a", 0, 9)), "t.model: piece \"a\" is of kind 9");
  const std::string good = sp_model(2);
  int refused = 0;
  for (size_t length = 1; length < good.size(); ++length) {
    try {
      read_sentencepiece_model(good.substr(0, length), "t.model");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) - 20);  // what is cut between two fields reads as a smaller model
}

TEST(SentencepieceTokenizer, GivesTheIdsOfTheModel) {
  const Scratch scratch;
  const std::string path = scratch.write("tokenizer.model", sp_model(2));
  if (!has_sentencepiece()) {
    EXPECT_NE(refusal([&] { open_tokenizer(path); }).find("libsentencepiece-dev"), std::string::npos);
    GTEST_SKIP() << "built without SentencePiece";
  }
  const auto tokenizer = open_tokenizer(path);
  EXPECT_EQ(tokenizer->vocab_size(), 11);
  EXPECT_EQ(tokenizer->encode("the \u00e9", {.add_special = true}), (std::vector<int32_t>{1, 5, 6, 10}));
  EXPECT_EQ(tokenizer->encode("t</s>t"), (std::vector<int32_t>{3, 2, 3}));
  EXPECT_EQ(tokenizer->encode("hx"), (std::vector<int32_t>{6, 8, 0}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{5, 5, 2}), "the the</s>");
  EXPECT_EQ(tokenizer->piece(5), " the");
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_EQ(tokenizer->id_of("\u2581the"), 5);
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_EQ(refusal([&] { tokenizer->decode(std::vector<int32_t>{11}); }), "token id 11: this tokenizer has ids 0 to 10");
  // The tokenizer.json of it gives the same ids.
  const auto again = make_bpe_tokenizer(read_tokenizer_json(tokenizer->json(), "x.json"));
  for (const char* text : {"the \u00e9", "t</s>t", "hx", "  the", "hehe the"})
    EXPECT_EQ(again->encode(text), tokenizer->encode(text)) << text;
}

TEST(SentencepieceJson, HoldsWhatTheModelDoesToText) {
  SentencepieceModel model = read_sentencepiece_model(sp_model(2), "t.model");
  model.character_map = "abcd";
  model.remove_extra_whitespaces = true;
  const base::Json root = base::parse_json(sentencepiece_json(model));
  ASSERT_EQ(root["normalizer"]["normalizers"].size(), 5u);
  EXPECT_EQ(root["normalizer"]["normalizers"][0]["precompiled_charsmap"], "YWJjZA==");
  EXPECT_EQ(root["normalizer"]["normalizers"][1]["type"], "Strip");
  EXPECT_EQ(root["normalizer"]["normalizers"][3]["type"], "Prepend");
  model.kind = SentencepieceModel::Kind::word;
  EXPECT_EQ(refusal([&] { sentencepiece_json(model); }),
            "a SentencePiece model of words or characters has no tokenizer.json; train one of kind bpe or unigram");
}

TEST(SentencepieceTokenizer, ReadsUnigramModelsToo) {
  if (!has_sentencepiece()) GTEST_SKIP() << "built without SentencePiece";
  const auto tokenizer = make_sentencepiece_tokenizer(sp_model(1), "t.model");
  EXPECT_EQ(tokenizer->encode("the"), (std::vector<int32_t>{4 - 1, 4}));  // -0 - 1 is more than -2
  EXPECT_NE(tokenizer->json().find("\"Unigram\""), std::string::npos);
  EXPECT_EQ(refusal([] { make_sentencepiece_tokenizer("no protocol buffer", "t.model"); }), "t.model: not a SentencePiece model");
}

}  // namespace
}  // namespace cairn::data
