#include "data/tokenizer/bpe_trainer.h"

#include <map>

#include <gtest/gtest.h>

#include "base/random.h"
#include "data/stories/stories.h"
#include "data/tokenizer.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {
namespace {

Bpe train(std::string_view text, int64_t vocab) { return train_bpe(std::span(&text, 1), {.vocab = vocab}); }

// The definition, counted anew for each merge.
std::vector<Merge> train_plainly(std::string_view text, int64_t vocab) {
  std::vector<std::vector<int32_t>> words;
  for_each_word(WordPattern::gpt2, text, [&](std::string_view word) {
    words.emplace_back();
    for (const char c : word) words.back().push_back(static_cast<uint8_t>(c));
  });
  std::vector<Merge> merges;
  for (auto next = int32_t{256}; next + 1 < vocab; ++next) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    std::pair<int32_t, int32_t> best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts)  // in rising order of ids: ties stay with the first
      if (count > most) std::tie(best, most) = std::pair(pair, count);
    if (most < 2) break;
    merges.push_back({best.first, best.second, next});
    for (auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != best.first || word[i + 1] != best.second) continue;
        word[i] = next;
        word.erase(word.begin() + static_cast<int64_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const Bpe bpe = train("low low low lower lowest", 260);
  ASSERT_EQ(bpe.merges.size(), 3u);
  EXPECT_EQ(bpe.merges[0], (Merge{'l', 'o', 256}));
  EXPECT_EQ(bpe.merges[1], (Merge{256, 'w', 257}));
  EXPECT_EQ(bpe.merges[2], (Merge{' ', 257, 258}));
  EXPECT_EQ(bpe.pieces[258], " low");
  EXPECT_EQ(bpe.pieces.back(), kEndOfText);
  EXPECT_EQ(bpe.added, (std::vector<AddedToken>{{259, std::string(kEndOfText)}}));
}

TEST(BpeTrainer, AgreesWithThePlainDefinitionOnStories) {
  const std::string text = stories(3, 0, 4);
  EXPECT_EQ(train(text, 420).merges, train_plainly(text, 420));
}

TEST(BpeTrainer, AgreesWithThePlainDefinitionOnRepetitiveText) {
  for (uint64_t seed = 0; seed < 40; ++seed) {  // few letters: overlapping pairs and many ties
    const base::Random random = base::Random(seed).for_purpose("bpe_trainer_test");
    std::string text;
    for (int64_t i = 0; i < 300; ++i) text += "aaab b "[random.below(i, 7)];
    EXPECT_EQ(train(text, 290).merges, train_plainly(text, 290)) << "seed " << seed;
  }
}

TEST(BpeTrainer, StopsWhenNoPairOccursTwice) {
  const Bpe bpe = train("abc", 1000);
  EXPECT_TRUE(bpe.merges.empty());
  EXPECT_EQ(bpe.pieces.size(), 257u);
  EXPECT_EQ(train("", 1000).pieces.size(), 257u);
}

TEST(BpeTrainer, CountsOverAllTexts) {
  const std::vector<std::string_view> texts = {"xy", "ab ab", "xy", "xy"};
  EXPECT_EQ(train_bpe(texts, {.vocab = 258}).merges, (std::vector<Merge>{{'x', 'y', 256}}));
}

TEST(BpeTrainer, HandlesAPageWithoutSpaces) {
  const base::Random random = base::Random(1).for_purpose("bpe_trainer_test");
  std::string text;
  for (int64_t i = 0; i < 100000; ++i) text += static_cast<char>('a' + random.below(i, 7));
  EXPECT_EQ(train(text, 512).pieces.size(), 512u);
}

TEST(BpeTrainer, LearnsTheSameOnAnyNumberOfThreads) {
  const std::string text = stories(3, 0, 1500);  // several pieces for each thread
  const std::string_view view = text;
  ASSERT_GT(text.size(), 900000u);
  const Bpe alone = train_bpe(std::span(&view, 1), {.vocab = 300, .pattern = WordPattern::llama3});
  EXPECT_EQ(train_bpe(std::span(&view, 1), {.vocab = 300, .pattern = WordPattern::llama3, .threads = 3}), alone);
}

TEST(BpeTrainer, PutsItsSpecialTokensLast) {
  const std::string_view text = "ab ab ab";
  const Bpe bpe = train_bpe(std::span(&text, 1), {.vocab = 260, .pattern = WordPattern::qwen2, .specials = {"<a>", "<b>"}});
  EXPECT_EQ(bpe.pieces.size(), 260u);
  EXPECT_EQ(bpe.added, (std::vector<AddedToken>{{258, "<a>"}, {259, "<b>"}}));
  EXPECT_EQ(bpe.pre_tokenizers, (std::vector<PreTokenizerStep>{{PreTokenizerStep::Kind::qwen2}}));
}

}  // namespace
}  // namespace cairn::data
