#include "data/text_cutter.h"

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

using Words = std::vector<std::string>;

Words cut(std::vector<Cut> cuts, std::string_view text, bool first = true) {
  Words words;
  const TextCutter cutter(std::move(cuts), "x.json");
  cutter(text, first, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words by_dash(Cut::Keep keep, std::string_view text = "-a-b--c-", bool invert = false) {
  return cut({{Cut::Kind::literal, "-", keep, invert}}, text);
}

// As the PyPI package `tokenizers` 0.23 splits "the-final--countdown" and the like.
TEST(TextCutter, KeepsMatchesAsAsked) {
  EXPECT_EQ(by_dash(Cut::Keep::isolated), (Words{"-", "a", "-", "b", "-", "-", "c", "-"}));
  EXPECT_EQ(by_dash(Cut::Keep::removed), (Words{"a", "b", "c"}));
  EXPECT_EQ(by_dash(Cut::Keep::removed, "a-b", true), (Words{"-"}));
  EXPECT_EQ(by_dash(Cut::Keep::merged_with_previous, "the-final--countdown"), (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(by_dash(Cut::Keep::merged_with_next, "the-final--countdown"), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(by_dash(Cut::Keep::contiguous, "the-final--countdown"), (Words{"the", "-", "final", "--", "countdown"}));
}

TEST(TextCutter, CutsByExpressionsAndKeepsWhatLiesBetween) {
  EXPECT_EQ(cut({{Cut::Kind::expression, "\\d+"}}, "a12b3"), (Words{"a", "12", "b", "3"}));
  EXPECT_EQ(cut({{Cut::Kind::expression, "x*"}}, "axxb"), (Words{"a", "xx", "b"}));  // it matches nothing as well
  EXPECT_EQ(cut({{Cut::Kind::expression, "\\p{L}+"}},
                "a\xff"
                "b"),
            (Words{"a", "\xff", "b"}));
}

TEST(TextCutter, CutsNumbers) {
  EXPECT_EQ(cut({{Cut::Kind::digits}}, "ab12\u0663c4"), (Words{"ab", "12\u0663", "c", "4"}));
  EXPECT_EQ(cut({{Cut::Kind::each_digit}}, "ab12\u0663"), (Words{"ab", "1", "2", "\u0663"}));
}

TEST(TextCutter, GoesFromStepToStep) {
  EXPECT_EQ(cut({{Cut::Kind::each_digit}, {Cut::Kind::gpt2}}, "a b12"), (Words{"a", " b", "1", "2"}));
  EXPECT_EQ(cut({}, "a b"), (Words{"a b"}));
  EXPECT_EQ(cut({{Cut::Kind::gpt2}}, ""), Words{});
}

TEST(TextCutter, PutsASpaceInFront) {
  EXPECT_EQ(cut({{Cut::Kind::prefix_space}, {Cut::Kind::gpt2}}, "a b"), (Words{" a", " b"}));
  EXPECT_EQ(cut({{Cut::Kind::prefix_space}}, " a"), (Words{" a"}));
}

TEST(TextCutter, MarksSpacesAndPutsAMarkInFrontAsAsked) {
  const auto marked = [](Cut::Prefix prefix, std::string_view text, bool first) {
    return cut({{Cut::Kind::mark_spaces, "_", Cut::Keep::isolated, false, prefix}}, text, first);
  };
  EXPECT_EQ(marked(Cut::Prefix::always, "a  b", false), (Words{"_a__b"}));
  EXPECT_EQ(marked(Cut::Prefix::always, " a", true), (Words{"_a"}));
  EXPECT_EQ(marked(Cut::Prefix::never, "a b", true), (Words{"a_b"}));
  EXPECT_EQ(marked(Cut::Prefix::first, "a b", true), (Words{"_a_b"}));
  EXPECT_EQ(marked(Cut::Prefix::first, "a b", false), (Words{"a_b"}));
}

}  // namespace
}  // namespace cairn::data
