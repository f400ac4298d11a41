#include "data/word_split.h"

#include <regex>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::data {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view text) {
  Words words;
  for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
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

TEST(WordSplit, TakesEveryHighByteForALetter) { EXPECT_EQ(split(" caf\xc3\xa9 x"), (Words{" caf\xc3\xa9", " x"})); }

TEST(WordSplit, EndsAWordAtEveryBorder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = random_text(seed, "ab's ll9 \n  !", 23);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (!is_border(text[cut - 1], text[cut])) continue;
      Words parts = split(std::string_view(text).substr(0, cut));
      const Words rest = split(std::string_view(text).substr(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, split(text)) << "seed " << seed << ", cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace cairn::data
