#include "evaluate/ensemble/posterior.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "evaluate/refused.h"

namespace cairn::evaluate {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::vector<double>> random_logs(size_t experts, size_t tokens) {
  std::vector<std::vector<double>> logs(experts, std::vector<double>(tokens));
  for (size_t j = 0; j < experts; ++j)
    for (size_t t = 0; t < tokens; ++t) logs[j][t] = std::log(0.05 + 0.9 * base::Random(3).for_index(j).uniform(t));
  return logs;
}

// What the product of the predictions must be: the probability of the whole under a mixture of whole sequences.
TEST(Mix, MultipliesUpToTheMixtureOfWholeSequences) {
  const std::vector<std::vector<double>> logs = random_logs(3, 17);
  const Mixed mixed = mix({.prior = {1, 3, 4}}, logs);
  for (size_t end = 1; end <= 17; ++end) {
    double whole = 0, product = 0;
    for (size_t j = 0; j < 3; ++j) {
      double sum = 0;
      for (size_t t = 0; t < end; ++t) sum += logs[j][t];
      whole += (j == 0 ? 1 : j + 2) / 8.0 * std::exp(sum);
    }
    for (size_t t = 0; t < end; ++t) product += mixed.log_p[t];
    EXPECT_NEAR(product, std::log(whole), 1e-12) << end;
  }
}

TEST(Mix, JudgesATokenWithoutHavingSeenIt) {
  std::vector<std::vector<double>> logs = random_logs(2, 9);
  const Mixed before = mix({.prior = {1, 1}}, logs);
  std::swap(logs[0][8], logs[1][8]);
  const Mixed after = mix({.prior = {1, 1}}, logs);
  EXPECT_EQ(before.log_q[8], after.log_q[8]);
  EXPECT_NE(before.log_q_end, after.log_q_end);
}

TEST(Mix, StaysExactWhereProbabilitiesThemselvesWouldVanish) {
  const std::vector<std::vector<double>> logs{std::vector<double>(20000, -20.0), std::vector<double>(20000, -20.001)};
  const Mixed mixed = mix({.prior = {1, 1}}, logs);
  EXPECT_NEAR(mixed.log_q_end[0], 0, 1e-8);
  EXPECT_NEAR(mixed.log_q_end[1], -20, 1e-6);  // 20000 times 0.001
  EXPECT_NEAR(mixed.log_p.back(), -20, 1e-6);
}

TEST(Mix, AveragesProbabilitiesAndNotTheirLogs) {
  const Mixed mixed = mix({.prior = {1, 1}, .average = true}, {{std::log(0.9), std::log(0.9)}, {std::log(0.1), std::log(0.3)}});
  EXPECT_NEAR(mixed.log_p[0], std::log(0.5), 1e-12);
  EXPECT_NEAR(mixed.log_p[1], std::log(0.6), 1e-12);
}

TEST(Mix, LeavesOutAllButTheLikeliestUntilTheNextRefresh) {
  // The third is best from the start, the first from its third token on.
  const std::vector<std::vector<double>> logs{{-3, -3, -0.1, -0.1, -0.1}, {-9, -9, -9, -9, -9}, {-1, -1, -9, -9, -9}};
  const Mixed mixed = mix({.prior = {1, 1, 2}, .top_k = 1, .refresh = 2}, logs);
  const double never = -std::numeric_limits<double>::infinity();
  EXPECT_THAT(mixed.log_q[0], ElementsAre(never, never, 0));
  EXPECT_THAT(mixed.log_q[3], ElementsAre(never, never, 0));  // it is too late by then, but nobody looks
  EXPECT_THAT(mixed.log_q[4], ElementsAre(0, never, never));  // refreshed
  EXPECT_EQ(mixed.log_p[3], -9);
  EXPECT_EQ(mixed.log_p[4], -0.1);
}

TEST(Mix, TakesAPriorOfNothingForNever) {
  const Mixed mixed = mix({.prior = {0, 1}}, {{-0.1, -0.1}, {-3, -3}});
  EXPECT_EQ(mixed.log_p, (std::vector<double>{-3, -3}));
}

TEST(CachedPrior, WeighsWhatItHadAgainstEachNewPosterior) {
  CachedPrior prior(2, 0.3);
  const double odds = std::log(3);
  prior.add(std::vector<double>{odds, 0});  // posterior 3/4, 1/4
  const double first = (0.3 * 0.5 + 0.75) / 1.3;
  EXPECT_THAT(prior.prior(), ElementsAre(DoubleNear(first, 1e-12), DoubleNear(1 - first, 1e-12)));
  prior.add(std::vector<double>{0, odds});
  const double posterior = first / (first + 3 * (1 - first));
  EXPECT_NEAR(prior.prior()[0], (0.3 * first + posterior) / 1.3, 1e-12);
}

TEST(CachedPrior, ByPowerForgetsAllButTheLastSequence) {
  CachedPrior usual(2, 0.3), by_power(2, 0.3, true);
  for (int i = 0; i < 6; ++i) {
    const std::vector<double> sums = i < 5 ? std::vector<double>{0.5, 0} : std::vector<double>{0, 40};
    usual.add(sums), by_power.add(sums);
  }
  EXPECT_LT(by_power.prior()[0], 0.001);  // 0.3^6 is left of it
  EXPECT_GT(usual.prior()[0], 0.1);
}

TEST(CachedPrior, RefusesADecayThatNeverFades) {
  EXPECT_THAT(refused([] { CachedPrior(2, 1.0); }), HasSubstr("decay = 1: must be at least 0 and less than 1"));
}

TEST(Mix, RefusesWhatCannotBeAPrior) {
  EXPECT_THAT(refused([] { check({.prior = {1, 1}}, 3); }), HasSubstr("a prior of 2 experts for an ensemble of 3"));
  EXPECT_THAT(refused([] { check({.prior = {0, 0}}, 2); }), HasSubstr("a prior of 0 for every expert"));
  EXPECT_THAT(refused([] { check({.prior = {1, -1}}, 2); }), HasSubstr("at least 0"));
  EXPECT_THAT(refused([] { check({.prior = {1, 1}, .top_k = 3}, 2); }), HasSubstr("top_k = 3: there are 2 experts"));
}

}  // namespace
}  // namespace cairn::evaluate
