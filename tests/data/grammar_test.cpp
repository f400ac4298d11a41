#include "data/stories/grammar.h"

#include <set>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::data {
namespace {

using Rules = std::vector<Grammar::Rule>;

std::string expand(const Rules& rules, uint64_t seed = 0) {
  const std::vector<std::string_view> slots = {"who"};
  const std::vector<std::string_view> values = {"Mia"};
  const Grammar grammar(slots, rules);
  Choices choices{base::Random(seed)};
  std::string text;
  grammar.expand(grammar.rule("start"), values, choices, text);
  return text;
}

TEST(Grammar, FillsSlotsAndRules) { EXPECT_EQ(expand({{"start", "{who} {does}."}, {"does", "sees {who}"}}), "Mia sees Mia."); }

TEST(Grammar, TakesEveryPartOfAChoiceSometimes) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) seen.insert(expand({{"start", "a[b|c[d|e]|]f"}}, seed));
  EXPECT_EQ(seen, (std::set<std::string>{"abf", "acdf", "acef", "af"}));
}

TEST(Grammar, DoesNotAcceptABrokenTemplate) {
  for (const char* broken : {"[a|b", "a]", "a|b", "{who", "{nobody}"}) {
    try {
      expand({{"start", broken}});
      ADD_FAILURE() << broken;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::broken_invariant) << broken;
    }
  }
}

}  // namespace
}  // namespace cairn::data
