#include "data/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

// Parts of a text: plain ones in quotes, tokens by their id.
std::string parts(std::vector<AddedToken> tokens, std::string_view text, bool specials = true) {
  std::vector<std::string> texts;
  for (const AddedToken& token : tokens) texts.push_back(token.text);
  const AddedTokens finder(std::move(tokens), texts);
  std::string out;
  for_each_part(
      text, finder, specials,
      [&](std::string_view part, size_t begin) { out += "'" + std::string(part) + "'@" + std::to_string(begin) + " "; },
      [&](const AddedToken& token) { out += std::to_string(token.id) + " "; });
  return out;
}

TEST(AddedTokens, TakesTheLeftmostAndOfThoseTheLongest) {
  const std::vector<AddedToken> tokens = {{1, "<a>"}, {2, "<a>b"}, {3, "b<"}};
  EXPECT_EQ(parts(tokens, "x<a>bb<a>"), "'x'@0 2 3 'a>'@7 ");
  EXPECT_EQ(parts(tokens, "<a><a"), "1 '<a'@3 ");
  EXPECT_EQ(parts(tokens, ""), "");
}

TEST(AddedTokens, TakesSpaceAlong) {
  EXPECT_EQ(parts({{.id = 1, .text = "<l>", .left_strip = true}}, "a \t\u3000<l> b"), "'a'@0 1 ' b'@9 ");
  EXPECT_EQ(parts({{.id = 1, .text = "<r>", .right_strip = true}}, "a <r> \n\u00a0b"), "'a '@0 1 'b'@9 ");
  // Space that the first took is not taken twice.
  EXPECT_EQ(parts({{.id = 1, .text = "<m>", .left_strip = true, .right_strip = true}}, "<m>  <m>x"), "1 1 'x'@8 ");
}

TEST(AddedTokens, FindsASingleWordOnlyWhereItStandsAlone) {
  const std::vector<AddedToken> tokens = {{.id = 1, .text = "cat", .single_word = true}};
  EXPECT_EQ(parts(tokens, "cat, a cat"), "1 ', a '@3 1 ");
  EXPECT_EQ(parts(tokens, "cats scat _cat \u00e9cat cat\u0301"), "'cats scat _cat \u00e9cat cat\u0301'@0 ");
}

TEST(AddedTokens, PassesSpecialOnesByWhereAsked) {
  const std::vector<AddedToken> tokens = {{.id = 1, .text = "<s>"}, {.id = 2, .text = "<t>", .special = false}};
  EXPECT_EQ(parts(tokens, "<s>a<t>", false), "'<s>a'@0 2 ");
}

TEST(AddedTokens, FindsTokensThatBeginUnlike) { EXPECT_EQ(parts({{1, "<a>"}, {2, "\u00e9"}}, "x\u00e9<a>"), "'x'@0 2 1 "); }

}  // namespace
}  // namespace cairn::data
