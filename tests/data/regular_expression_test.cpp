#include "data/tokenizer/regular_expression.h"

#include <gtest/gtest.h>

#include "data/tokenizer/word_split.h"
#include "scratch.h"

namespace cairn::data {
namespace {

std::string first(const std::string& pattern, std::string_view text) {
  const auto match = RegularExpression(pattern, "x.json").find(text, 0);
  return match ? std::string(text.substr(match->begin, match->end - match->begin)) : "nothing";
}

TEST(RegularExpression, KnowsUnicodeClasses) {
  EXPECT_EQ(first("\\p{L}+", "12 \u00e9t\u00e9!"), "\u00e9t\u00e9");
  EXPECT_EQ(first("\\s+", "a\u3000\u00a0b"), "\u3000\u00a0");
  EXPECT_EQ(first("\\s", "\u180e"), "nothing");  // which PCRE2 itself takes for one
  EXPECT_EQ(first("[^\\s]+", " \u180ex "), "\u180ex");
  EXPECT_EQ(first("\\S+", " ab "), "ab");
  EXPECT_EQ(first("a(?=b)", "aab"), "a");
}

TEST(RegularExpression, GivesTheWordsOfTheScanners) {
  const std::string text = "I'LL say: it's 1234567  o'clock!\n\n  caf\u00e9 \u3000\u00a0x\u0663 \u00bd\u2014ok '\u017fo";
  for (const WordPattern pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2}) {
    const RegularExpression expression(std::string(expression_of(pattern)), "x.json");
    size_t at = 0;
    for_each_word(pattern, text, [&](std::string_view word) {
      const auto match = expression.find(text, at);
      ASSERT_TRUE(match);
      EXPECT_EQ(text.substr(match->begin, match->end - match->begin), word);
      at = match->end;
    });
  }
}

TEST(RegularExpression, PassesMalformedBytesBy) {
  EXPECT_EQ(first("\\p{L}+", "\xff\xc3 ab\xff"), "ab");
  EXPECT_EQ(first(".", "\xff"), "nothing");
}

TEST(RegularExpression, RefusesWhatDoesNotCompile) {
  EXPECT_EQ(refusal([] { RegularExpression("a(b", "x.json"); }),
            "x.json: the pattern \"a(b\" does not compile: missing closing parenthesis");
  EXPECT_EQ(refusal([] { RegularExpression(std::string(70000, 'a'), "x.json"); }),
            "x.json: a pattern of 70000 bytes, and at most 65536 are read");
}

TEST(RegularExpression, GivesUpOnAPatternThatWouldRunForYears) {
  const RegularExpression hostile("(a+)+$", "x.json");
  EXPECT_EQ(refusal([&] { hostile.find(std::string(40, 'a') + "b", 0); }),
            "x.json: the pattern could not be tried on a text of 41 bytes: match limit exceeded");
}

TEST(RegularExpression, MatchesAMegabyte) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(first("[ab]+", text).size(), text.size());
  EXPECT_EQ(first("\\p{L}+(?!\\S)", text).size(), text.size());
  // A choice at every character needs memory for every character, and that is bounded.
  EXPECT_EQ(refusal([&] { first("(?:a|b)+", text); }),
            "x.json: the pattern could not be tried on a text of 1048576 bytes: heap limit exceeded");
}

}  // namespace
}  // namespace cairn::data
