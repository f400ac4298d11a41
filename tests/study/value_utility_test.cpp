#include "study/value_utility.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "base/random.h"
#include "study/value_estimators.h"
#include "study/value_gradient.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

Predictions two_classes(const std::vector<double>& of_one) {
  Predictions found{.classes = 2};
  for (const double p : of_one) found.log_probabilities.insert(found.log_probabilities.end(), {std::log(1 - p), std::log(p)});
  return found;
}

TEST(Score, OfTwoClasses) {
  const Predictions predictions = two_classes({0.9, 0.8, 0.3, 0.6});
  const std::vector<int64_t> labels{1, 0, 0, 1};
  EXPECT_DOUBLE_EQ(score("accuracy", predictions, labels), 0.75);
  EXPECT_NEAR(score("neg_loss", predictions, labels), (std::log(0.9) + std::log(0.2) + std::log(0.7) + std::log(0.6)) / 4, 1e-12);
  EXPECT_DOUBLE_EQ(score("f1", predictions, labels), 2 * 2.0 / (3 + 2));
  EXPECT_DOUBLE_EQ(score("auc", predictions, labels), 0.75);  // 0.6 lies below 0.8, the other three pairs are right
  EXPECT_DOUBLE_EQ(score("auc", two_classes({0.5, 0.5, 0.5, 0.5}), labels), 0.5);
}

TEST(Score, OfTextsIsTheMeanOverTargets) { EXPECT_DOUBLE_EQ(score("neg_loss", {.losses = {1, 3}, .targets = {3, 1}}, {}), -1.5); }

TEST(UntrainedScore, OfEachMetric) {
  const std::vector<int64_t> labels{0, 0, 0, 1};
  EXPECT_DOUBLE_EQ(untrained_score("accuracy", labels, 2, 1), 0.75);
  EXPECT_DOUBLE_EQ(untrained_score("auc", labels, 2, 1), 0.5);
  EXPECT_NEAR(untrained_score("neg_loss", labels, 2, 1), 0.75 * std::log(0.75) + 0.25 * std::log(0.25), 1e-12);
  EXPECT_NEAR(untrained_score("f1", labels, 2, 1), 0.25, 0.05);  // a shuffled 1 meets the 1 in a quarter of the cases
}

LabelledRows points(int64_t rows, int64_t classes, uint64_t seed) {
  const base::Random random(seed);
  LabelledRows made{.features = 3, .classes = classes};
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<double> x;
    for (uint64_t k = 0; k < 3; ++k) x.push_back(random.for_index(static_cast<uint64_t>(i)).normal(k));
    made.values.insert(made.values.end(), x.begin(), x.end());
    made.labels.push_back(std::max_element(x.begin(), x.begin() + classes) - x.begin());
  }
  return made;
}

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(i);
  return ids;
}

TEST(LogisticLearner, LearnsAndIgnoresTheOrderOfSamples) {
  for (const int64_t classes : {2, 3}) {
    const LabelledRows rows = points(300, classes, 5);
    const auto learner = make_logistic_learner(rows, 1);
    std::vector<int64_t> training = first(200), measured;
    for (int64_t i = 200; i < 300; ++i) measured.push_back(i);
    const Predictions one = learner->predict(training, measured);
    std::reverse(training.begin(), training.end());
    const Predictions other = learner->predict(training, measured);
    EXPECT_EQ(one.log_probabilities, other.log_probabilities);
    std::vector<int64_t> labels(rows.labels.begin() + 200, rows.labels.end());
    EXPECT_GT(score("accuracy", one, labels), 0.9) << classes;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(one.log_probabilities[static_cast<size_t>(c)]);
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(LogisticLearner, RefusesMoreUnknownsThanItCanSolveFor) {
  const LabelledRows rows{.features = 5000, .classes = 2};
  EXPECT_THAT(base::message_of([&] { make_logistic_learner(rows, 1); }), HasSubstr("study.learner = recipe"));
}

TEST(TrainedUtility, CountsSubsetsWithoutAClassAsUntrained) {
  const LabelledRows rows = points(60, 2, 9);
  const auto learner = make_logistic_learner(rows, 1);
  UtilityParts parts{.learner = *learner, .rows = first(60), .labels = rows.labels, .classes = 2};
  std::vector<int64_t> zeros;
  for (int64_t i = 0; i < 60; ++i)
    if (rows.labels[static_cast<size_t>(i)] == 0) zeros.push_back(i);
  EXPECT_FALSE(make_utility(parts)->covers(zeros));
  EXPECT_TRUE(make_utility(parts)->covers(first(60)));
  parts.needs_all_classes = false;
  EXPECT_TRUE(make_utility(parts)->covers(zeros));
}

TEST(TrainedUtility, ResamplesAroundItsScore) {
  const LabelledRows rows = points(300, 2, 2);
  const auto learner = make_logistic_learner(rows, 1);
  const auto utility = make_utility({.learner = *learner, .rows = first(300), .labels = rows.labels, .classes = 2});
  const std::vector<double> scores = utility->resampled(first(30), 100, 4);
  double mean = 0, squares = 0;
  for (const double one : scores) mean += one / 100, squares += one * one / 100;
  const double whole = utility->value(first(30));
  EXPECT_NEAR(mean, whole, 0.01);
  EXPECT_NEAR(std::sqrt(squares - mean * mean), std::sqrt(whole * (1 - whole) / 300), 0.008);
}

GradientGame gradient_game(const LabelledRows& rows, std::vector<int64_t> hidden, std::vector<std::vector<int64_t>> players) {
  return {
      .rows = rows, .players = std::move(players), .validation = first(40), .hidden = std::move(hidden), .metric = "neg_loss", .seed = 4};
}

TEST(GradientValues, PermutationsDoNotDependOnTheirNeighbours) {
  const LabelledRows rows = points(60, 3, 7);
  const GradientValues values(gradient_game(rows, {8, 5}, {{40}, {41, 42}, {43}, {44, 45, 46}, {47}}));
  const std::vector<double> all = values.rows(0, 4, 0.1);
  const size_t width = 5 + kRowTail;
  for (int64_t t = 0; t < 4; ++t) {
    const std::vector<double> one = values.rows(t, 1, 0.1);
    for (size_t i = 0; i < width; ++i) EXPECT_NEAR(one[i], all[static_cast<size_t>(t) * width + i], 1e-5) << t << " " << i;
  }
}

TEST(GradientValues, MarginalsSumUpToTheLastScore) {
  const LabelledRows rows = points(60, 2, 8);
  const GradientValues values(gradient_game(rows, {}, {{40}, {41}, {42}, {43}}));
  const std::vector<double> row = values.rows(3, 1, 0.5);
  EXPECT_NEAR(row[0] + row[1] + row[2] + row[3], row[6] - values.untrained(3, 1), 1e-9);
}

TEST(GradientValues, AStepOfAPlayerIsThatOfItsMeanGradient) {
  // A player whose samples are one sample three times takes the same step as the player of that sample.
  const LabelledRows rows = points(60, 2, 8);
  const GradientValues once(gradient_game(rows, {6}, {{50}, {51}})), thrice(gradient_game(rows, {6}, {{50, 50, 50}, {51}}));
  const std::vector<double> a = once.rows(0, 1, 0.3), b = thrice.rows(0, 1, 0.3);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
}

}  // namespace
}  // namespace cairn::study
