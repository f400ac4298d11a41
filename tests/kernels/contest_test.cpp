#include "kernels/contest.h"

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kernels {
namespace {

// Plays it through with results that come `late` turns after their own; gives the turns it took.
int play(Contest& contest, const std::vector<double>& seconds, size_t late, const std::function<double(int turn)>& noise = {}) {
  std::deque<std::pair<int, double>> pending;
  int turn = 0;
  for (; !contest.is_decided() && turn < 1000; ++turn) {
    const Contest::Turn now = contest.next();
    if (now.counts) pending.emplace_back(now.who, seconds[static_cast<size_t>(now.who)] + (noise ? noise(turn) : 0));
    if (pending.size() > late || (!now.counts && !pending.empty())) {
      contest.took(pending.front().first, pending.front().second);
      pending.pop_front();
    }
  }
  return turn;
}

TEST(Contest, TheFastestWinsHoweverLateResultsCome) {
  for (const size_t late : {0, 1, 7, 100}) {
    Contest contest(6);
    EXPECT_EQ(contest.winner(), 0);
    EXPECT_LT(play(contest, {5, 4, 3, 2, 2.5, 9}, late), 100);
    EXPECT_TRUE(contest.is_decided());
    EXPECT_EQ(contest.winner(), 3) << late;
    EXPECT_EQ(contest.next().who, 3);
    EXPECT_FALSE(contest.next().counts);
  }
}

TEST(Contest, TheFirstStaysUnlessItIsClearlyBeaten) {
  Contest close(3);
  play(close, {1, 0.995, 1.2}, 2);
  EXPECT_EQ(close.winner(), 0);
  Contest clear(3);
  play(clear, {1, 0.98, 1.2}, 2);
  EXPECT_EQ(clear.winner(), 1);
}

TEST(Contest, ATryThatLoadsCodeDoesNotCount) {
  Contest contest(2);
  play(contest, {1, 0.5}, 0, [](int turn) { return turn < 2 ? 100 * (1 - turn) + 50.0 : 0; });
  EXPECT_EQ(contest.winner(), 1);
}

TEST(Contest, OneSlowTryOfTheBestDoesNotDecide) {
  Contest contest(3);
  play(contest, {1, 0.5, 0.9}, 0, [](int turn) { return turn == 7 ? 5.0 : 0; });
  EXPECT_EQ(contest.winner(), 1);
}

TEST(Contest, OfOneIsDecided) { EXPECT_TRUE(Contest(1).is_decided() && Contest(0).is_decided()); }

}  // namespace
}  // namespace cairn::kernels
