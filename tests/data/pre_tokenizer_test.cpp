#include "data/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

using Words = std::vector<std::string>;

Words cut(std::vector<PreTokenizerStep> pre_tokenizers, std::string_view text, bool first = true) {
  Words words;
  const PreTokenizer cutter(std::move(pre_tokenizers), "x.json");
  cutter(text, first, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words by_dash(PreTokenizerStep::Behavior keep, std::string_view text = "-a-b--c-", bool invert = false) {
  return cut({{PreTokenizerStep::Kind::literal, "-", keep, invert}}, text);
}

// As the PyPI package `tokenizers` 0.23 splits "the-final--countdown" and the like.
TEST(PreTokenizer, KeepsMatchesAsAsked) {
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::isolated), (Words{"-", "a", "-", "b", "-", "-", "c", "-"}));
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::removed), (Words{"a", "b", "c"}));
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::removed, "a-b", true), (Words{"-"}));
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::merged_with_previous, "the-final--countdown"), (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::merged_with_next, "the-final--countdown"), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(by_dash(PreTokenizerStep::Behavior::contiguous, "the-final--countdown"), (Words{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizer, CutsByExpressionsAndKeepsWhatLiesBetween) {
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::expression, "\\d+"}}, "a12b3"), (Words{"a", "12", "b", "3"}));
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::expression, "x*"}}, "axxb"), (Words{"a", "xx", "b"}));  // it matches nothing as well
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::expression, "\\p{L}+"}},
                "a\xff"
                "b"),
            (Words{"a", "\xff", "b"}));
}

TEST(PreTokenizer, CutsNumbers) {
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::digits}}, "ab12\u0663c4"), (Words{"ab", "12\u0663", "c", "4"}));
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::each_digit}}, "ab12\u0663"), (Words{"ab", "1", "2", "\u0663"}));
}

TEST(PreTokenizer, GoesFromStepToStep) {
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::each_digit}, {PreTokenizerStep::Kind::gpt2}}, "a b12"), (Words{"a", " b", "1", "2"}));
  EXPECT_EQ(cut({}, "a b"), (Words{"a b"}));
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::gpt2}}, ""), Words{});
}

TEST(PreTokenizer, PutsASpaceInFront) {
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::prefix_space}, {PreTokenizerStep::Kind::gpt2}}, "a b"), (Words{" a", " b"}));
  EXPECT_EQ(cut({{PreTokenizerStep::Kind::prefix_space}}, " a"), (Words{" a"}));
}

TEST(PreTokenizer, MarksSpacesAndPutsAMarkInFrontAsAsked) {
  const auto marked = [](PreTokenizerStep::Prefix prefix, std::string_view text, bool first) {
    return cut({{PreTokenizerStep::Kind::metaspace, "_", PreTokenizerStep::Behavior::isolated, false, prefix}}, text, first);
  };
  EXPECT_EQ(marked(PreTokenizerStep::Prefix::always, "a  b", false), (Words{"_a__b"}));
  EXPECT_EQ(marked(PreTokenizerStep::Prefix::always, " a", true), (Words{"_a"}));
  EXPECT_EQ(marked(PreTokenizerStep::Prefix::never, "a b", true), (Words{"a_b"}));
  EXPECT_EQ(marked(PreTokenizerStep::Prefix::first, "a b", true), (Words{"_a_b"}));
  EXPECT_EQ(marked(PreTokenizerStep::Prefix::first, "a b", false), (Words{"a_b"}));
}

}  // namespace
}  // namespace cairn::data
