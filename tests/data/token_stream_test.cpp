#include "data/corpus/token_stream.h"

#include <gtest/gtest.h>

#include "documents.h"

namespace cairn::data {
namespace {

TEST(TokenStream, HasADigestOfItsTokensHoweverManyFilesTheyLieIn) {
  const TestDocument first{{1, 2, 3}, {}}, second{{4, 5}, {}};
  const uint64_t together = digest(*row_of({first, second}));
  EXPECT_EQ(digest(TokenStream({tokens_in_memory({first}), tokens_in_memory({second})})), together);
  EXPECT_NE(digest(*row_of({first, {{4, 6}, {}}})), together);
  EXPECT_NE(digest(*row_of({{{1, 2, 3, 4, 5}, {}}})), together) << "documents are cut elsewhere";
  EXPECT_NE(digest(*row_of({second, first})), together);
}

// Of two million tokens a million are looked at: a change at either end is seen, and so is one of the length.
TEST(TokenStream, HasADigestOfLongRowsFromEndToEnd) {
  std::vector<int32_t> tokens(2'000'003);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 997);
  const auto digest_of = [](const std::vector<int32_t>& ids) { return digest(*row_of({{ids, {}}})); };
  const uint64_t before = digest_of(tokens);
  EXPECT_EQ(digest_of(tokens), before);
  tokens.front() = 998;
  EXPECT_NE(digest_of(tokens), before);
  tokens.front() = 0;
  tokens.pop_back();
  EXPECT_NE(digest_of(tokens), before);
}

}  // namespace
}  // namespace cairn::data
