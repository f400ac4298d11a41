#include "study/expert_scores.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::study {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

const double kLikely = std::log(0.8), kRare = std::log(0.2);

// One expert knows the first of two domains, the other the second; each domain has two sequences of two tokens.
std::map<std::string, DomainLogProbs> logs_of(bool first) {
  const TokenLogProbs good{{kLikely, kLikely}, {kLikely, kLikely}}, bad{{kRare, kRare}, {kRare, kRare}};
  return {{"a", {first ? good : bad, first ? good : bad}}, {"b", {first ? bad : good, first ? bad : good}}};
}

TEST(ScoreEnsemble, WeighsByTheUniformPriorThenByWhatWasRead) {
  const auto one = logs_of(true), other = logs_of(false);
  const DomainResult result = score_ensemble({&one.at("a"), &other.at("a")}, {.prior = "uniform"});
  const double second = 0.8 * 0.8 + 0.2 * 0.2;  // the posterior is 0.8 by then
  EXPECT_NEAR(result.loss, -(std::log(0.5) + std::log(second)) / 2, 1e-12);
  EXPECT_THAT(result.by_position[1], ElementsAre(DoubleNear(0.8, 1e-12), DoubleNear(0.2, 1e-12)));
  EXPECT_THAT(result.posterior, ElementsAre(DoubleNear(0.65, 1e-12), DoubleNear(0.35, 1e-12)));
}

TEST(ScoreEnsemble, FindsThePriorOnDevelopmentSequencesAlone) {
  const auto one = logs_of(true), other = logs_of(false);
  const DomainResult result = score_ensemble({&one.at("b"), &other.at("b")}, {.prior = "cached"});
  EXPECT_GT(result.prior[1], 0.9);
  EXPECT_LT(result.loss, -std::log(0.7));
  DomainLogProbs misled{one.at("a").development, one.at("b").test}, misled_other{other.at("a").development, other.at("b").test};
  EXPECT_LT(score_ensemble({&misled, &misled_other}, {.prior = "cached"}).prior[1], 0.1);
}

TEST(AddMixture, TakesDomainsInTurn) {
  auto logs = logs_of(true);
  logs["b"].test.push_back({kLikely});
  add_mixture(logs);
  const TokenLogProbs& mixed = logs.at(kMixture).test;
  ASSERT_EQ(mixed.size(), 5u);
  EXPECT_EQ(mixed[0][0], kLikely);
  EXPECT_EQ(mixed[1][0], kRare);
  EXPECT_EQ(mixed[4].size(), 1u);
  EXPECT_NEAR(loss_of(mixed), -(5 * kLikely + 4 * kRare) / 9, 1e-12);
}

}  // namespace
}  // namespace cairn::study
