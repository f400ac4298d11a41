#include "model/generate/sampling.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "base/error_of.h"
#include "base/random.h"

namespace cairn::model {
namespace {

using base::message_of;

const std::vector<float> kLogits{1.5, -0.25, 3.0, 0.75, 2.25, -1.0, 3.0, 0.0, 1.25, -2.5, 2.0};
const std::vector<int32_t> kSeen{2, 9, 4, 2};

struct Case {
  SamplingOptions options;
  std::map<int32_t, double> left;
};

// Ids 2 and 6 are the likeliest; a tokenizer with 2 or 6 ids has neither, or one of them.
TEST(TokenSampler, NeverSamplesIdsBeyondTheTokenizer) {
  for (const double penalty : {1.0, 1.3}) {
    for (const double temperature : {0.0, 1.0, 50.0}) {
      TokenSampler sampler({.temperature = temperature, .top_k = 0, .repetition_penalty = penalty}, 2);
      double total = 0;
      for (const auto& [id, share] : sampler.candidates(kLogits, kSeen)) {
        EXPECT_LT(id, 2);
        total += share;
      }
      EXPECT_NEAR(total, 1, 1e-12);
      for (double uniform = 0.025; uniform < 1; uniform += 0.05) EXPECT_LT(sampler.sample(kLogits, kSeen, uniform).id, 2);
    }
  }
  TokenSampler greedy({.temperature = 0}, 6);
  EXPECT_EQ(greedy.sample(kLogits, {}, 0.5).id, 2);
  double sum = 0;
  for (const float logit : kLogits) sum += std::exp(logit);
  EXPECT_NEAR(greedy.sample(kLogits, {}, 0.5).log_probability, 3.0 - std::log(sum), 1e-6) << "of the model's own distribution";
  EXPECT_EQ(TokenSampler({.temperature = 0}, 99).sample(kLogits, {}, 0.5).id, 2) << "more ids than logits";
}

// Printed by tools/check_sampling.py with transformers 4.57.6.
const std::vector<Case>& cases() {
  static const std::vector<Case> list{{{.temperature = 1, .top_k = 0},
                                       {{0, 0.06461},
                                        {1, 0.011227},
                                        {2, 0.28956},
                                        {3, 0.030519},
                                        {4, 0.136779},
                                        {5, 0.005303},
                                        {6, 0.28956},
                                        {7, 0.014416},
                                        {8, 0.050318},
                                        {9, 0.001183},
                                        {10, 0.106523}}},
                                      {{.temperature = 0.5, .top_k = 0},
                                       {{0, 0.020289},
                                        {1, 0.000613},
                                        {2, 0.407516},
                                        {3, 0.004527},
                                        {4, 0.090929},
                                        {5, 0.000137},
                                        {6, 0.407516},
                                        {7, 0.00101},
                                        {8, 0.012306},
                                        {9, 7e-06},
                                        {10, 0.055151}}},
                                      {{.temperature = 1, .top_k = 3}, {{2, 0.404471}, {4, 0.191058}, {6, 0.404471}}},
                                      {{.temperature = 1, .top_k = 1}, {{2, 0.5}, {6, 0.5}}},  // a tie with the last of the k
                                      {{.temperature = 1, .top_k = 0, .top_p = 0.7}, {{2, 0.404471}, {4, 0.191058}, {6, 0.404471}}},
                                      {{.temperature = 1, .top_k = 0, .top_p = 0.1}, {{6, 1.0}}},
                                      {{.temperature = 2, .top_k = 0, .min_p = 0.4},
                                       {{0, 0.112924}, {2, 0.23906}, {4, 0.164303}, {6, 0.23906}, {8, 0.099655}, {10, 0.144997}}},
                                      {{.temperature = 1, .top_k = 0, .repetition_penalty = 1.5},
                                       {{0, 0.086847},
                                        {1, 0.015092},
                                        {2, 0.143186},
                                        {3, 0.041024},
                                        {4, 0.086847},
                                        {5, 0.007129},
                                        {6, 0.38922},
                                        {7, 0.019378},
                                        {8, 0.067636},
                                        {9, 0.000456},
                                        {10, 0.143186}}},
                                      {{.temperature = 0.7, .top_k = 6, .top_p = 0.85, .min_p = 0.2, .repetition_penalty = 1.3},
                                       {{2, 0.230793}, {6, 0.620503}, {10, 0.148704}}}};
  return list;
}

TEST(Sampling, LeavesWhatTransformersLeaves) {
  for (size_t i = 0; i < cases().size(); ++i) {
    TokenSampler sampler(cases()[i].options);
    const TokenSampler::Candidates& found = sampler.candidates(kLogits, kSeen);
    ASSERT_EQ(found.size(), cases()[i].left.size()) << "case " << i;
    for (const auto& [id, chance] : found) {
      ASSERT_TRUE(cases()[i].left.contains(id)) << "case " << i << ", id " << id;
      EXPECT_NEAR(chance, cases()[i].left.at(id), 6e-7) << "case " << i << ", id " << id;
    }
  }
}

TEST(Sampling, WithoutTemperatureTakesTheLikeliestAfterThePenalty) {
  TokenSampler plain({.temperature = 0}), penalized({.temperature = 0, .repetition_penalty = 1.5});
  EXPECT_EQ(plain.sample(kLogits, kSeen, 0.99).id, 2);  // the first of two equals
  EXPECT_EQ(penalized.sample(kLogits, kSeen, 0.99).id, 6);
}

TEST(Sampling, DrawsEachTokenAsOftenAsItsProbabilitySays) {
  TokenSampler sampler({.temperature = 1, .top_k = 0});
  const std::vector<float> logits{std::log(0.5f), std::log(0.2f), -std::numeric_limits<float>::infinity(), std::log(0.3f)};
  EXPECT_EQ(sampler.sample(logits, {}, 0.0).id, 0);
  EXPECT_EQ(sampler.sample(logits, {}, 0.4999).id, 0);
  EXPECT_EQ(sampler.sample(logits, {}, 0.5001).id, 1);
  EXPECT_EQ(sampler.sample(logits, {}, 0.6999).id, 1);
  EXPECT_EQ(sampler.sample(logits, {}, 0.7001).id, 3);
  EXPECT_EQ(sampler.sample(logits, {}, 0.9999999).id, 3);
  int64_t second = 0;
  for (uint64_t i = 0; i < 10000; ++i) second += sampler.sample(logits, {}, base::Random(7).uniform(i)).id == 1;
  EXPECT_NEAR(static_cast<double>(second), 2000, 4 * std::sqrt(10000 * 0.2 * 0.8));
}

TEST(Sampling, GivesLogProbabilitiesOfTheUntouchedDistribution) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.2f), std::log(0.3f)};
  TokenSampler sampler({.temperature = 0.3, .top_k = 2, .repetition_penalty = 1.7});
  const TokenSampler::SampledToken choice = sampler.sample(logits, std::vector<int32_t>{0, 1}, 0.999);
  EXPECT_NEAR(choice.log_probability, std::log(std::vector<double>{0.5, 0.2, 0.3}[static_cast<size_t>(choice.id)]), 1e-6);
}

TEST(Sampling, KeepsAtLeastOneTokenWhateverIsAsked) {
  TokenSampler sampler({.temperature = 1e-4, .top_k = 1, .top_p = 1e-9, .min_p = 1});
  EXPECT_EQ(sampler.candidates(kLogits, {}).size(), 1u);
}

TEST(Sampling, RefusesOptionsWithoutMeaning) {
  const auto said = [](const SamplingOptions& options) { return message_of([&] { check(options); }); };
  EXPECT_EQ(said({.temperature = -1}), "--temperature -1: must be a number from 0 (always the likeliest) up");
  EXPECT_EQ(said({.top_k = -2}), "--top-k -2: must be at least 1, or 0 for all");
  EXPECT_EQ(said({.top_p = 0}), "--top-p 0: must be above 0 and at most 1");
  EXPECT_EQ(said({.top_p = std::nan("")}), "--top-p nan: must be above 0 and at most 1");
  EXPECT_EQ(said({.min_p = 1.5}), "--min-p 1.5: must be between 0 and 1");
  EXPECT_EQ(said({.repetition_penalty = 0}), "--repetition-penalty 0: must be above 0; 1 changes nothing, more discourages repeating");
}

TEST(Sampling, SaysSoWhereLogitsAreNoNumbers) {
  TokenSampler sampler({});
  const std::vector<float> logits{1, std::nanf(""), 2};
  EXPECT_NE(message_of([&] { sampler.sample(logits, {}, 0.5); }).find("not finite"), std::string::npos);
}

}  // namespace
}  // namespace cairn::model
