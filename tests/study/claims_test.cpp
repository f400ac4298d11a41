#include "study/claims.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

using testing::AllOf;
using testing::ContainsRegex;

TEST(Findings, HoldOnlyIfSomethingWasMeasuredAndNothingFails) {
  Findings nothing;
  nothing.skip("speed on a GPU", "no GPU here");
  EXPECT_FALSE(nothing.hold());
  Findings good;
  good.at_most("error", 1, 0.5, 0.5);
  good.at_least("speed", 1, 2, 1.5);
  EXPECT_TRUE(good.hold());
  good.at_most("memory", 1, 1.1, 1);
  EXPECT_FALSE(good.hold());
}

TEST(Findings, NeverHoldForWhatIsNotANumber) {
  Findings findings;
  findings.at_most("error", 0, std::nan(""), 1);
  EXPECT_FALSE(findings.hold());
}

TEST(Findings, PrintTheAgreedJson) {
  Findings findings;
  findings.at_most("error", 1, 0.25, 0.5);
  findings.skip("speed", "no GPU here");
  const base::Json json = base::parse_json(to_json("x", findings, 1.5));
  EXPECT_EQ(json["slug"], "x");
  EXPECT_EQ(json["claims"][0]["measured"], 0.25);
  EXPECT_EQ(json["claims"][0]["threshold"], "at most 0.5");
  EXPECT_EQ(json["claims"][0]["pass"], true);
  EXPECT_EQ(json["skipped"][0]["reason"], "no GPU here");
  EXPECT_EQ(json["seconds"], 1.5);
}

TEST(Compare, GivesARatioAboveOneWhereOursIsBetter) {
  const BenchRow faster = compare("speed", {20, 22, 30}, {10, 10, 10}, "tokens/s", Better::higher, 2);
  EXPECT_DOUBLE_EQ(faster.ratio, 2.2);
  EXPECT_NEAR(faster.spread, 1 / 2.2, 1e-12);
  EXPECT_TRUE(faster.pass);
  const BenchRow heavier = compare("memory", {2}, {1}, "MiB", Better::lower, 1);
  EXPECT_DOUBLE_EQ(heavier.ratio, 0.5);
  EXPECT_FALSE(heavier.pass);
}

TEST(BenchTable, SaysWhatWasNotMeasuredRatherThanMissed) {
  const std::string table =
      to_table({compare("memory", {2}, {1}, "MiB", Better::lower, 1), {.case_name = "eager", .unit = "MiB", .goal = 1, .measured = false}});
  EXPECT_THAT(table, AllOf(ContainsRegex("memory .* MISSED"), ContainsRegex("eager .* not measured")));
}

}  // namespace
}  // namespace cairn::study
