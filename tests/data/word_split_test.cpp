#include "data/tokenizer/word_split.h"

#include <regex>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::data {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view text, WordPattern pattern = WordPattern::gpt2) {
  Words words;
  for_each_word(pattern, text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// GPT-2's pattern as published, for ASCII, run by the standard library.
Words split_by_pattern(const std::string& text) {
  static const std::regex pattern("'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\\sA-Za-z0-9]+|\\s+(?!\\S)|\\s+");
  Words words;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) words.push_back(at->str());
  return words;
}

std::string random_text(uint64_t seed, std::string_view letters, int64_t length) {
  const base::Random random = base::Random(seed).for_purpose("word_split_test");
  std::string text;
  for (int64_t i = 0; i < length; ++i) text += letters[random.below(i, letters.size())];
  return text;
}

TEST(WordSplit, KeepsTheSpaceWithTheWordAndCutsContractions) {
  EXPECT_EQ(split("I'll say: it's 12  o'clock!\n"),
            (Words{"I", "'ll", " say", ":", " it", "'s", " 12", " ", " o", "'", "clock", "!", "\n"}));
}

TEST(WordSplit, FollowsTheGpt2PatternOnRandomAscii) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = random_text(seed, "abstrevmldI'' \n\t09.!-", 1 + static_cast<int64_t>(seed % 41));
    EXPECT_EQ(split(text), split_by_pattern(text)) << "seed " << seed;
  }
}

// What the regular expressions give in the PyPI package `tokenizers` 0.23.
TEST(WordSplit, FollowsEachPatternOnWordsDigitsAndSpace) {
  const std::string text = "I'LL say: it's 1234567  o'clock!\n\n  x";
  EXPECT_EQ(split(text), (Words{"I", "'", "LL", " say", ":", " it", "'s", " 1234567", " ", " o", "'", "clock", "!", "\n\n ", " x"}));
  EXPECT_EQ(split(text, WordPattern::llama3),
            (Words{"I", "'LL", " say", ":", " it", "'s", " ", "123", "456", "7", " ", " o", "'clock", "!\n\n", " ", " x"}));
  EXPECT_EQ(split(text, WordPattern::qwen2),
            (Words{"I", "'LL", " say", ":", " it", "'s", " ", "1", "2", "3", "4", "5", "6", "7", " ", " o", "'clock", "!\n\n", " ", " x"}));
}

TEST(WordSplit, FollowsEachPatternBeyondAscii) {
  const std::string text = "caf\u00e9 na\u0308ive \u3000\u00a0x \u0663\u0664 \u00bd\u2014ok";
  EXPECT_EQ(split(text),
            (Words{"caf\u00e9", " na", "\u0308", "ive", " \u3000", "\u00a0", "x", " \u0663\u0664", " \u00bd", "\u2014", "ok"}));
  EXPECT_EQ(split(text, WordPattern::llama3),
            (Words{"caf\u00e9", " na", "\u0308ive", " \u3000", "\u00a0x", " ", "\u0663\u0664", " ", "\u00bd", "\u2014ok"}));
  EXPECT_EQ(split(text, WordPattern::qwen2),
            (Words{"caf\u00e9", " na", "\u0308ive", " \u3000", "\u00a0x", " ", "\u0663", "\u0664", " ", "\u00bd", "\u2014ok"}));
  const std::string more = "'\u017fo \u65e5\u672c\u8a9e\u3002\u200b\u180ey";  // a long s; two invisible characters that are no space
  EXPECT_EQ(split(more), (Words{"'", "\u017fo", " \u65e5\u672c\u8a9e", "\u3002\u200b\u180e", "y"}));
  EXPECT_EQ(split(more, WordPattern::llama3), (Words{"'\u017f", "o", " \u65e5\u672c\u8a9e", "\u3002\u200b\u180e", "y"}));
}

TEST(WordSplit, FollowsEachPatternAcrossLineBreaks) {
  EXPECT_EQ(split("a \n\n b\r\n\tc  \n"), (Words{"a", " \n\n", " b", "\r\n", "\t", "c", "  \n"}));
  EXPECT_EQ(split("a \n\n b\r\n\tc  \n", WordPattern::llama3), (Words{"a", " \n\n", " b", "\r\n", "\tc", "  \n"}));
  EXPECT_EQ(split("!!\n\n?\n x"), (Words{"!!", "\n", "\n", "?", "\n", " x"}));
  EXPECT_EQ(split("!!\n\n?\n x", WordPattern::qwen2), (Words{"!!\n\n", "?\n", " x"}));
}

TEST(WordSplit, TakesAStrayByteForASign) {
  EXPECT_EQ(split("a\xff\xc3 \xe2\x82z"), (Words{"a", "\xff\xc3", " \xe2\x82", "z"}));
  EXPECT_EQ(split("\xff\n\xc3x", WordPattern::llama3), (Words{"\xff\n", "\xc3x"}));
}

TEST(WordSplit, KnowsItsOwnExpressions) {
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2})
    EXPECT_EQ(known_pattern(expression_of(pattern)), pattern);
  EXPECT_EQ(known_pattern("\\s+"), std::nullopt);
}

TEST(WordSplit, EndsAWordAtEveryBorder) {
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2}) {
    int borders = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const std::string text = random_text(seed, "ab's ll9 \n  !\r\t\xc2\xa0", 23);
      for (size_t cut = 1; cut < text.size(); ++cut) {
        if (!is_word_boundary_of(pattern, text[cut - 1], text[cut])) continue;
        ++borders;
        Words parts = split(std::string_view(text).substr(0, cut), pattern);
        const Words rest = split(std::string_view(text).substr(cut), pattern);
        parts.insert(parts.end(), rest.begin(), rest.end());
        EXPECT_EQ(parts, split(text, pattern)) << "seed " << seed << ", cut at " << cut;
      }
    }
    EXPECT_GT(borders, 100);
  }
}

}  // namespace
}  // namespace cairn::data
