#include "study/claim_spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Findings at_a_seed(double error, double speed) {
  Findings findings;
  findings.at_most("error", 0, error, 0.5);
  findings.at_least(speed > 1.5 ? "speed of 2 runs" : "speed of 1 run", 1, speed, 1);  // its text differs by seed
  findings.skip("memory", "no GPU here");
  return findings;
}

SpreadFindings three_seeds() {
  SpreadCollector runs;
  runs.add(4, at_a_seed(0.25, 2));
  runs.add(5, at_a_seed(0.75, 1.25));
  runs.add(6, at_a_seed(0.5, 3));
  return runs.collect();
}

TEST(ClaimSpread, CountsTheSeedsAtWhichAClaimHolds) {
  const SpreadFindings found = three_seeds();
  ASSERT_EQ(found.claims.size(), 2u);
  EXPECT_THAT(found.seeds, ElementsAre(4, 5, 6));
  EXPECT_THAT(found.claims[0].measured, ElementsAre(0.25, 0.75, 0.5));
  EXPECT_EQ(found.claims[0].passes, 2u);
  EXPECT_FALSE(found.claims[0].hold());
  EXPECT_EQ(found.claims[1].low(), 1.25);
  EXPECT_EQ(found.claims[1].high(), 3);
  EXPECT_TRUE(found.claims[1].hold());
  EXPECT_EQ(found.skipped.size(), 1u);  // once, not at every seed
  EXPECT_FALSE(found.hold());
}

TEST(ClaimSpread, ClaimsOfTheSameTextStayApart) {
  SpreadCollector runs;
  for (const uint64_t seed : {1, 2}) {
    Findings findings;
    findings.at_most("the same: error", 0, 0.1, 0.5);
    findings.at_most("the same: error", 0, 0.2, 0.5);
    runs.add(seed, findings);
  }
  const SpreadFindings found = runs.collect();
  ASSERT_EQ(found.claims.size(), 2u);
  EXPECT_THAT(found.claims[1].measured, ElementsAre(0.2, 0.2));
}

TEST(ClaimSpread, ASeedThatEndsWithAnErrorIsNotLeftOut) {
  SpreadCollector runs;
  runs.add(1, at_a_seed(0.25, 2));
  EXPECT_TRUE(runs.collect().hold());
  runs.add_error(2, "out of memory");
  EXPECT_FALSE(runs.collect().hold());
  EXPECT_THAT(to_markdown("x", "about", "cairn prove x", runs.collect()), HasSubstr("**error** at seed 2: out of memory"));
}

TEST(ClaimSpread, TablesSayTheRangeAndWhatWasNotRun) {
  const std::string page = to_markdown("x", "An idea.", "cairn prove x --seeds 3", three_seeds());
  EXPECT_THAT(page, HasSubstr("`cairn prove x --seeds 3`"));
  EXPECT_THAT(page, HasSubstr("| error | at most 0.5 | 0.25 to 0.75 | **does not hold**: holds at 2 of 3 seeds |"));
  EXPECT_THAT(page, HasSubstr("| memory | | not run | skipped: no GPU here |"));
  EXPECT_THAT(to_table(three_seeds()), HasSubstr("FAILS: holds at 2 of 3 seeds"));
  const base::Json json = base::parse_json(to_json("x", three_seeds(), 1));
  EXPECT_EQ(json["claims"][0]["passes"], 2);
  EXPECT_EQ(json["claims"][0]["pass"], false);
  EXPECT_EQ(json["skipped"][0]["claim"], "memory");
}

}  // namespace
}  // namespace cairn::study
