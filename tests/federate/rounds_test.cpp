#include "federate/coding/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "federate/coding/choose.h"
#include "sync/coding/straggler_chain.h"

namespace cairn::federate {
namespace {

using sync::CodeKind;

TEST(Rounds, CloseAtTheCutOffOrWhenNobodyIsMissing) {
  Rounds rounds(make_scheme({.kind = SchemeKind::gc, .s = 1}, 3, 2, CodeKind::automatic, 1), 0.5);
  rounds.begin();
  EXPECT_FALSE(rounds.closes_at());
  rounds.arrived(1, 2.0);
  EXPECT_FALSE(rounds.closes_at());  // two are missing, one may
  rounds.arrived(0, 2.5);
  EXPECT_DOUBLE_EQ(*rounds.closes_at(), 3.0);
  rounds.arrived(2, 2.75);
  EXPECT_DOUBLE_EQ(*rounds.closes_at(), 2.75);
  const ClosedRound closed = rounds.close(2.75);
  EXPECT_FALSE(closed.waited);
  EXPECT_EQ(closed.completed->job, 0);
}

TEST(Rounds, WaitBehindTheCutOffUntilThePatternConforms) {
  Rounds rounds(make_scheme({.kind = SchemeKind::gc, .s = 1}, 3, 2, CodeKind::automatic, 1), 0.5);
  rounds.begin();
  rounds.arrived(1, 2.0);
  rounds.arrived(2, 9.0);
  EXPECT_DOUBLE_EQ(*rounds.closes_at(), 9.0);  // and not for the third
  const ClosedRound closed = rounds.close(9.0);
  EXPECT_TRUE(closed.waited);
  EXPECT_EQ(closed.late, (Workers{1, 0, 0}));
}

// The pilot of the sheet: base 1 s, 4 s times the load, 4 s for a slow worker.
WorkerSeconds pilot(int n, double enter, double leave, uint64_t seed, int64_t rounds) {
  std::vector<std::vector<char>> slow(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    sync::StragglerChain chain({enter, leave, 4}, seed, i);
    for (int64_t r = 0; r < rounds; ++r) slow[static_cast<size_t>(i)].push_back(chain.next());
  }
  return [slow = std::move(slow)](int64_t round, int worker, double load) {
    return 1 + 4 * load + (slow[static_cast<size_t>(worker)][static_cast<size_t>(round)] ? 4 : 0);
  };
}

TEST(Choose, FindsParametersThatBeatGradientCodingUnderBursts) {
  const WorkerSeconds seconds = pilot(8, 0.05, 0.9, 1, 220);
  const ChooseOptions options{.workers = 8, .jobs = 200, .delay_max = 4, .mu = 0.6};
  const std::vector<Choice> all = rank_parameters(options, seconds);
  EXPECT_EQ(all.front().spec.kind, SchemeKind::msgc);
  const auto best = [&](SchemeKind kind) {
    return std::find_if(all.begin(), all.end(), [&](const Choice& one) { return one.spec.kind == kind; })->seconds;
  };
  EXPECT_LT(best(SchemeKind::msgc), 0.95 * best(SchemeKind::gc));
  EXPECT_LT(best(SchemeKind::gc), best(SchemeKind::none));
}

TEST(Choose, FitsSecondsPerLoad) {
  EXPECT_NEAR(fit_per_load({{0.1, 1.4}, {0.2, 1.8}, {0.3, 2.2}}), 4, 1e-9);
  EXPECT_EQ(fit_per_load({{0.1, 1.4}, {0.1, 1.8}}), 0);
  Profile profile{.seconds = {{1, 2}, {3, 4}}, .load = 0.5, .per_load = 2};
  EXPECT_DOUBLE_EQ(profile.times()(3, 1, 1.0), 5);  // round 3 is like round 1
}

TEST(Replay, WithoutCodingWaitsForEverybody) {
  const Replayed found = replay(make_scheme({}, 2, 3, CodeKind::automatic, 1), 1,
                                [](int64_t round, int worker, double) { return worker == 1 && round == 1 ? 10.0 : 1.0; });
  EXPECT_DOUBLE_EQ(found.seconds, 12);
  EXPECT_EQ(found.waited, 1);
  EXPECT_EQ(found.jobs, 3);
}

}  // namespace
}  // namespace cairn::federate
