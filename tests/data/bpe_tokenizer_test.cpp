#include "data/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "data/bpe_trainer.h"
#include "data/stories.h"
#include "data/word_split.h"
#include "scratch.h"

namespace cairn::data {
namespace {

Bpe story_bpe() {
  static const Bpe bpe = [] {
    const std::string text = stories(7, 0, 60);
    const std::string_view view = text;
    return train_bpe(std::span(&view, 1), 400);
  }();
  return bpe;
}

// Merge by merge over the whole word, as the definition says: for each merge in order, every place from the left.
std::vector<int32_t> encode_plainly(const Bpe& bpe, std::string_view text) {
  std::vector<int32_t> all;
  for_each_word(text, [&](std::string_view word) {
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
  for (int i = 0; i < 40000; ++i) text += " word" + std::to_string(i % 20011);  // more words than are remembered
  ASSERT_GT(text.size(), 100000u);
  EXPECT_EQ(tokenizer->encode(text), encode_plainly(story_bpe(), text));
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

}  // namespace
}  // namespace cairn::data
