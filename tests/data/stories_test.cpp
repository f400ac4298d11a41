#include "data/stories/stories.h"

#include <set>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "data/stories/story_parts.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {
namespace {

std::string story(uint64_t seed, int64_t index) {
  std::string text;
  append_story(seed, index, text);
  return text;
}

int64_t words_in(const std::string& text) {
  int64_t words = 0;
  for (size_t i = 0; i < text.size(); ++i) words += text[i] > ' ' && (i == 0 || text[i - 1] <= ' ');
  return words;
}

TEST(Stories, DependOnSeedAndIndexOnly) {
  EXPECT_EQ(stories(5, 10, 3), story(5, 10) + "\n\n" + story(5, 11) + "\n\n" + story(5, 12));
  EXPECT_EQ(story(5, 123456789), story(5, 123456789));
  EXPECT_NE(story(5, 1), story(5, 2));
  EXPECT_NE(story(5, 1), story(6, 1));
  EXPECT_EQ(stories(5, 0, 0), "");
}

// A story told otherwise is another corpus: recorded runs would no longer match. Change this line on purpose only.
TEST(Stories, StayTheSameFromOneVersionToTheNext) { EXPECT_EQ(base::checksum(stories(1, 0, 100)), 0xfd80edf3bbc7b229u); }

TEST(Stories, HardlyEverRepeat) {
  std::set<std::string> seen;
  for (int64_t i = 0; i < 10000; ++i) seen.insert(story(1, i));
  EXPECT_GT(seen.size(), 9900u);
}

TEST(Stories, HaveTheLengthOfALittleStory) {
  int64_t total = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t words = words_in(story(2, i));
    EXPECT_GE(words, 60) << story(2, i);
    EXPECT_LE(words, 170) << story(2, i);
    total += words;
  }
  EXPECT_GT(total / 2000, 90);
  EXPECT_LT(total / 2000, 150);
}

TEST(Stories, ArePlainTextWithoutLooseEnds) {
  for (int64_t i = 0; i < 5000; ++i) {
    const std::string text = story(3, i);
    for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << text;
    ASSERT_EQ(text.find_first_of("[]{}|"), std::string::npos) << text;
    ASSERT_EQ(text.find("  "), std::string::npos) << text;
    ASSERT_EQ(std::count(text.begin(), text.end(), '"') % 2, 0) << text;
    ASSERT_TRUE(text.back() == '.' || text.back() == '"' || text.back() == '!') << text;
    ASSERT_TRUE(text[0] >= 'A' && text[0] <= 'Z') << text;
    for (const char* wrong : {" a a", " a e", " a i", " a o", " .", " ,", "..", "\n "})
      ASSERT_EQ(text.find(wrong), std::string::npos) << wrong << " in " << text;
  }
}

TEST(Stories, UseASmallVocabularyAndEveryPlot) {
  const std::string text = stories(4, 0, 5000);
  std::set<std::string> words;
  for_each_word(WordPattern::gpt2, text, [&](std::string_view word) {
    if (word[0] == ' ') word.remove_prefix(1);
    words.emplace(word);
  });
  EXPECT_GT(words.size(), 600u);
  EXPECT_LT(words.size(), 1600u);
  EXPECT_GE(story_plots().size(), 40u);
  for (const auto& [name, plot] : story_plots()) {
    // Known by its longest stretch without slots and choices.
    std::string_view longest;
    for (size_t begin = 0; begin < plot.size();) {
      const size_t end = std::min(plot.find_first_of("[]{}|", begin), plot.size());
      if (end - begin > longest.size()) longest = plot.substr(begin, end - begin);
      begin = end + 1;
    }
    ASSERT_GE(longest.size(), 20u) << name;
    EXPECT_NE(text.find(longest), std::string::npos) << name << " is never told";
  }
}

}  // namespace
}  // namespace cairn::data
