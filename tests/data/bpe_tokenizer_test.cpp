#include "data/tokenizer/bpe_tokenizer.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "base/random.h"
#include "data/stories/stories.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/scored_pieces.h"
#include "data/tokenizer/word_split.h"
#include "scratch.h"

namespace cairn::data {
namespace {

Bpe story_bpe() {
  static const Bpe bpe = [] {
    const std::string text = stories(7, 0, 60);
    const std::string_view view = text;
    return train_bpe(std::span(&view, 1), {.vocab = 400});
  }();
  return bpe;
}

// Merge by merge over the whole word, as the definition says: for each merge in order, every place from the left.
std::vector<int32_t> encode_plainly(const Bpe& bpe, std::string_view text) {
  std::vector<int32_t> all;
  for_each_word(WordPattern::gpt2, text, [&](std::string_view word) {
    std::vector<int32_t> ids;
    for (const char c : word) ids.push_back(static_cast<uint8_t>(c));  // as train_bpe numbers them
    for (const Merge& merge : bpe.merges) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
        ids[i] = merge.result;
        ids.erase(ids.begin() + static_cast<int64_t>(i) + 1);
      }
    }
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

std::string random_bytes(uint64_t seed, int64_t length) {
  const base::Random random = base::Random(seed).for_purpose("bpe_tokenizer_test");
  std::string bytes;
  for (int64_t i = 0; i < length; ++i) bytes += static_cast<char>(random.below(i, 256));
  return bytes;
}

TEST(BpeTokenizer, AppliesTheMergesInTheirOrder) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::string text = stories(8, 0, 5) + "  don't aaaaaaa\n\n";
  EXPECT_EQ(tokenizer->encode(text), encode_plainly(story_bpe(), text));
}

TEST(BpeTokenizer, RemembersWordsWithoutChangingTheirIds) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  std::string text = stories(8, 0, 60);
  for (int i = 0; i < 22000; ++i) text += " word" + std::to_string(i % 17011);  // more words than are remembered
  ASSERT_GT(text.size(), 100000u);
  EXPECT_EQ(tokenizer->encode(text), encode_plainly(story_bpe(), text));
}

TEST(BpeTokenizer, AppliesTheMergesInTheirOrderToLongWords) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  for (uint64_t seed = 0; seed < 50; ++seed) {  // a queue takes over from 49 bytes on
    const base::Random random = base::Random(seed).for_purpose("long words");
    std::string word;
    for (uint64_t i = 0; i < 40 + seed * 3; ++i) word += "theaonds"[random.below(i, 8)];
    EXPECT_EQ(tokenizer->encode(word), encode_plainly(story_bpe(), word)) << "seed " << seed;
  }
}

TEST(BpeTokenizer, CountsTheLastOfTwoMergesOfOnePair) {
  Bpe bpe = story_bpe();
  bpe.pieces = {bpe.pieces.begin(), bpe.pieces.begin() + 256};
  for (const char* piece : {"ab", "bc", "<|endoftext|>"}) bpe.pieces.emplace_back(piece);
  bpe.added[0].id = 258;
  bpe.merges = {{'a', 'b', 256}, {'b', 'c', 257}};
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("abc"), (std::vector<int32_t>{256, 'c'}));
  bpe.merges.push_back({'a', 'b', 256});
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("abc"), (std::vector<int32_t>{'a', 257}));
}

TEST(BpeTokenizer, GivesBackAnyBytes) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  for (int64_t length : {0, 1, 2, 3, 17, 1000, 40000}) {
    const std::string bytes = random_bytes(3, length);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << length;
  }
}

TEST(BpeTokenizer, TakesTheEndMarkerAsOneToken) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::vector<int32_t> ids = tokenizer->encode("a<|endoftext|><|endoftext|> b<|endoftext");
  EXPECT_EQ(ids[0], 'a');
  EXPECT_EQ(ids[1], tokenizer->end_of_text());
  EXPECT_EQ(ids[2], tokenizer->end_of_text());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->end_of_text()), 2);
  EXPECT_EQ(tokenizer->decode(ids), "a<|endoftext|><|endoftext|> b<|endoftext");
}

TEST(BpeTokenizer, EncodesAWordOfAMegabyteInNoTime) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::string word(1 << 20, 'o');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
}

TEST(BpeTokenizer, RefusesAWordThatWouldTakeAllMemory) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::string word((16 << 20) + 1, 'o');
  EXPECT_EQ(refusal([&] { tokenizer->encode(word); }),
            "a word of 16777217 characters, and at most 16777216 can be encoded: is this text, with spaces and line breaks?");
}

TEST(BpeTokenizer, RefusesIdsItDoesNotHave) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  for (const int32_t id : {-1, 400})
    EXPECT_EQ(refusal([&] { tokenizer->decode(std::span(&id, 1)); }), fmt::format("token id {}: this tokenizer has ids 0 to 399", id));
}

TEST(BpeTokenizer, HashesAlikeOnlyIfItEncodesAlike) {
  Bpe other = story_bpe();
  std::swap(other.merges[0], other.merges[1]);
  EXPECT_EQ(hash(*make_bpe_tokenizer(story_bpe())), hash(*make_bpe_tokenizer(story_bpe())));
  EXPECT_NE(hash(*make_bpe_tokenizer(story_bpe())), hash(*make_bpe_tokenizer(other)));
}

TEST(BpeTokenizer, GivesBackAnyBytesWithEveryPattern) {
  const std::string text = stories(7, 0, 60);
  const std::string_view view = text;
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2}) {
    const auto tokenizer = make_bpe_tokenizer(train_bpe(std::span(&view, 1), {.vocab = 400, .pattern = pattern}));
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const base::Random random = base::Random(seed).for_purpose("round trip");
      static const std::vector<std::string> kParts = {"the ", "'LL",      "\u00e9",  "\u3000",        "\n",   " ", "12",
                                                      "\xff", "\xe2\x82", "e\u0301", "<|endoftext|>", "\r\n", "!?"};
      std::string made;
      for (uint64_t i = 0; i < random.below(0, 30); ++i) made += kParts[random.below(i + 1, kParts.size())];
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(made)), made) << "seed " << seed;
    }
  }
}

TEST(BpeTokenizer, TakesSpecialTokensForTextWhereAsked) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::vector<int32_t> ids = tokenizer->encode("a<|endoftext|>", {.parse_special = false});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->end_of_text()), 0);
  EXPECT_EQ(tokenizer->decode(ids), "a<|endoftext|>");
}

TEST(BpeTokenizer, KnowsItsTokensByName) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  EXPECT_EQ(tokenizer->id_of("<|endoftext|>"), 399);
  EXPECT_EQ(tokenizer->id_of("\u0120"), ' ');  // the letter of a space
  EXPECT_EQ(tokenizer->id_of("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(399));
  EXPECT_FALSE(tokenizer->is_special('a'));
  EXPECT_FALSE(tokenizer->is_special(4000));
  EXPECT_EQ(tokenizer->piece(' '), " ");
  EXPECT_EQ(tokenizer->begin_of_text(), std::nullopt);
}

TEST(BpeTokenizer, AddsWhatBelongsAroundAText) {
  Bpe bpe = story_bpe();
  bpe.begin = {399};
  bpe.end = {'!', 399};
  const auto tokenizer = make_bpe_tokenizer(std::move(bpe));
  EXPECT_EQ(tokenizer->encode("z", {.add_special = true}), (std::vector<int32_t>{399, 'z', '!', 399}));
  EXPECT_EQ(tokenizer->encode("z"), (std::vector<int32_t>{'z'}));
}

TEST(BpeTokenizer, TakesAWordThatIsAPieceWhole) {
  Bpe bpe = story_bpe();
  bpe.merges.clear();
  bpe.pieces.insert(bpe.pieces.end() - 1, "zebra");
  bpe.added[0].id = 400;
  bpe.whole_words = true;
  const auto tokenizer = make_bpe_tokenizer(bpe);
  EXPECT_EQ(tokenizer->encode("zebra zebra"), (std::vector<int32_t>{399, ' ', 'z', 'e', 'b', 'r', 'a'}));
  bpe.whole_words = false;
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("zebra"), (std::vector<int32_t>{'z', 'e', 'b', 'r', 'a'}));
}

TEST(BpeTokenizer, NamesItsBordersOnlyWhereCuttingIsSafe) {
  Bpe bpe = story_bpe();
  EXPECT_TRUE(make_bpe_tokenizer(bpe)->is_split_point('a', ' '));
  EXPECT_FALSE(make_bpe_tokenizer(bpe)->is_split_point(' ', 'a'));
  bpe.added[0].right_strip = true;
  EXPECT_FALSE(make_bpe_tokenizer(bpe)->is_split_point('a', ' '));
}

// A BPE of characters with bytes for what has no piece: 0 <unk>, 1 <s>, 2 </s>, 3 .. 258 the bytes, then these.
Bpe character_bpe() {
  std::vector<ScoredPiece> pieces = {
      {"<unk>", 0, ScoredPiece::Kind::unknown}, {"<s>", 0, ScoredPiece::Kind::control}, {"</s>", 0, ScoredPiece::Kind::control}};
  for (int byte = 0; byte < 256; ++byte) pieces.push_back({byte_piece(byte), 0, ScoredPiece::Kind::byte});
  for (const char* text : {"\u2581t", "he", "\u2581the", "\u2581", "t", "h", "e", "\u00e9", "\u2581\u2581"})  // from 259 on
    pieces.push_back({text, 259.f - static_cast<float>(pieces.size())});
  return bpe_of_scored_pieces(pieces, true);
}

TEST(BpeTokenizer, EncodesCharactersAndFallsBackToBytes) {
  const auto tokenizer = make_bpe_tokenizer(character_bpe());
  EXPECT_EQ(tokenizer->encode("the the"), (std::vector<int32_t>{261, 261}));
  EXPECT_EQ(tokenizer->encode("\u00e9x\u20ac"), (std::vector<int32_t>{262, 266, 3 + 'x', 3 + 0xe2, 3 + 0x82, 3 + 0xac}));
  EXPECT_EQ(tokenizer->encode("the  h"), (std::vector<int32_t>{261, 267, 264}));
  EXPECT_EQ(tokenizer->encode("h\xff"), (std::vector<int32_t>{262, 264, 3 + 0xff}));
  EXPECT_EQ(tokenizer->encode(""), (std::vector<int32_t>{}));
  // Each stretch between special tokens has its own space in front.
  EXPECT_EQ(tokenizer->encode("the<s>the", {.add_special = true}), (std::vector<int32_t>{1, 261, 1, 261}));
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_EQ(tokenizer->begin_of_text(), 1);
  for (const char* text : {"the the", " the", "\u00e9 \u20ac\xff\n", "x  the"}) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->piece(261), " the");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{261, 261}), "the the");
  EXPECT_FALSE(tokenizer->is_split_point('a', ' '));
}

TEST(BpeTokenizer, GivesCharactersWithoutAPieceTheUnknownOne) {
  Bpe bpe = character_bpe();
  bpe.byte_fallback = false;
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("xyh"), (std::vector<int32_t>{262, 0, 264}));
  bpe.fuse_unknown = false;
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("xyh"), (std::vector<int32_t>{262, 0, 0, 264}));
  bpe.unknown = -1;
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("xyh"), (std::vector<int32_t>{262, 264}));
}

// Merges that go across a space would be missed if words were cut apart before them.
TEST(BpeTokenizer, MergesAcrossSpacesWhereAPieceDoes) {
  Bpe bpe = character_bpe();
  bpe.pieces.push_back("e\u2581t");
  bpe.pieces.push_back("e\u2581");
  bpe.merges.insert(bpe.merges.begin(), {{265, 262, 269}, {269, 263, 268}});
  EXPECT_EQ(make_bpe_tokenizer(bpe)->encode("e te"), (std::vector<int32_t>{262, 268, 265}));
}

TEST(BpeTokenizer, ServesManyThreadsAtOnce) {
  const auto tokenizer = make_bpe_tokenizer(story_bpe());
  const std::string text = stories(9, 0, 20);
  const std::vector<int32_t> expected = tokenizer->encode(text);
  std::vector<std::jthread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) wrong += tokenizer->encode(text) != expected;
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(BpeTokenizer, RefusesToEndADocumentWithoutAToken) {
  Bpe bpe = story_bpe();
  bpe.added.clear();
  bpe.pieces.back() = "no end";
  EXPECT_EQ(refusal([&] { make_bpe_tokenizer(bpe)->end_of_text(); }),
            "the tokenizer has no token that ends a document. Name one as eos_token in tokenizer_config.json beside it.");
}

}  // namespace
}  // namespace cairn::data
