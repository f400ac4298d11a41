#include "evaluate/ensemble/ensemble_model.h"

#include <cmath>
#include <numeric>
#include <set>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluate/small_model.h"
#include "evaluate/token_losses.h"
#include "kernels/device.h"
#include "model/generate/generate.h"

namespace cairn::evaluate {
namespace {

// Three small models of different widths, and the ensemble that they make.
class SmallEnsemble {
 public:
  explicit SmallEnsemble(MixtureOptions options, int64_t length = 24) : length_(length) {
    std::vector<model::DecoderShape> shapes;
    std::vector<at::Tensor> flat;
    for (size_t j = 0; j < 3; ++j) {
      SmallModel& expert = experts_[j];
      expert.shape.mlp += static_cast<int64_t>(8 * j);
      expert.shape.length = length;
      expert.model = model::make_decoder(expert.shape);
      const at::Tensor values = at::empty({expert.model->elements()});
      base::Random(5 + j).fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
      values_.push_back(values.mul_(0.3));
      shapes.push_back(expert.shape);
      flat.push_back(values_.back());
    }
    model_ = make_ensemble(shapes, options);
    weights_ = std::make_unique<model::FlatWeights>(model_->layout(), at::cat(flat));
    buffers_ = model_->make_buffers(at::kFloat);
  }

  EvaluatedModel evaluated() {
    return {
        .model = *model_, .weights = *weights_, .buffers = buffers_, .tokenizer = *experts_[0].tokenizer, .vocab = 257, .length = length_};
  }

  // log p of each token but the first under each expert by itself.
  std::vector<std::vector<double>> by_expert(const std::vector<int32_t>& tokens) {
    std::vector<std::vector<double>> logs;
    for (size_t j = 0; j < 3; ++j) {
      const model::FlatWeights own(experts_[j].model->layout(), values_[j]);
      const std::vector<ScoredTokens> rows{{tokens, 1}};
      const EvaluatedModel alone{.model = *experts_[j].model,
                                 .weights = own,
                                 .buffers = experts_[j].buffers,
                                 .tokenizer = *experts_[j].tokenizer,
                                 .vocab = 257,
                                 .length = length_};
      const std::vector<std::vector<float>> losses = token_losses(alone, rows);
      logs.emplace_back();
      for (const float loss : losses.front()) logs.back().push_back(-loss);
    }
    return logs;
  }

  std::vector<model::GeneratedText> generate(const std::vector<model::GenerateRequest>& requests, int64_t tokens, bool together = false,
                                             std::vector<int32_t> stops = {}) {
    return model::generate(*model_, *weights_, buffers_, requests,
                           {.tokens = tokens,
                            .length_max = length_,
                            .sampling = {.temperature = 1, .top_k = 0},
                            .stops = std::move(stops),
                            .batched = together});
  }

  void move_to(at::Device device, at::ScalarType type) {
    weights_ = std::make_unique<model::FlatWeights>(model_->layout(), weights_->flat().to(device, type));
    buffers_ = model_->make_buffers(at::TensorOptions().dtype(at::kFloat).device(device));
  }

 private:
  int64_t length_;
  SmallModel experts_[3];
  std::vector<at::Tensor> values_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::FlatWeights> weights_;
  model::Buffers buffers_;
};

void expect_scored_as_mixed(const MixtureOptions& options) {
  SmallEnsemble ensemble(options);
  const std::vector<ScoredTokens> rows{{{256, 1, 2, 3, 4, 5, 6, 200, 100, 17, 17, 17, 3, 9}, 1}, {{9, 8}, 1}, {{7, 7, 7, 7, 1, 2, 3}, 3}};
  const std::vector<std::vector<float>> found = token_losses(ensemble.evaluated(), rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    const Mixed expected = mix(options, ensemble.by_expert(rows[r].tokens));
    const auto skipped = static_cast<size_t>(rows[r].first) - 1;
    ASSERT_EQ(found[r].size() + skipped, expected.log_p.size());
    for (size_t i = 0; i < found[r].size(); ++i) EXPECT_NEAR(-found[r][i], expected.log_p[skipped + i], 2e-5) << r << ", " << i;
  }
}

TEST(EnsembleModel, ScoresEveryTokenAsTheMixtureOfItsExperts) {
  expect_scored_as_mixed({.prior = {1, 2, 3}});
  expect_scored_as_mixed({.prior = {1, 2, 3}, .average = true});
  expect_scored_as_mixed({.prior = {1, 0, 3}});
  expect_scored_as_mixed({.prior = {1, 1, 1}, .top_k = 1, .refresh = 4});
  expect_scored_as_mixed({.prior = {1, 1, 1}, .top_k = 2, .refresh = 3});
}

// Prompts of several lengths side by side, two of them the same; experts that are left out have to catch up from the cache.
void expect_written_as_scored(size_t tokens, int64_t length) {
  for (const MixtureOptions& options :
       {MixtureOptions{.prior = {1, 2, 3}}, MixtureOptions{.prior = {1, 1, 1}, .average = true},
        MixtureOptions{.prior = {1, 1, 1}, .top_k = 1, .refresh = 4}, MixtureOptions{.prior = {1, 1, 1}, .top_k = 2, .refresh = 5}}) {
    SmallEnsemble ensemble(options, length);
    const std::vector<model::GenerateRequest> requests{
        {{256, 4, 5}, base::Random(1)}, {{256, 4, 5}, base::Random(2)}, {{9, 9, 9, 9, 9, 9, 9}, base::Random(3)}, {{1}, base::Random(4)}};
    const std::vector<model::GeneratedText> written = ensemble.generate(requests, static_cast<int64_t>(tokens));
    for (size_t r = 0; r < requests.size(); ++r) {
      std::vector<int32_t> all = requests[r].prompt;
      all.insert(all.end(), written[r].ids.begin(), written[r].ids.end());
      const std::vector<ScoredTokens> row{{all, static_cast<int64_t>(requests[r].prompt.size())}};
      const std::vector<std::vector<float>> scored = token_losses(ensemble.evaluated(), row);
      ASSERT_EQ(written[r].ids.size(), tokens);
      for (size_t i = 0; i < tokens; ++i)
        EXPECT_NEAR(written[r].log_probabilities[i], -scored[0][i], 2e-5) << "top_k " << options.top_k << ", " << r << ", " << i;
    }
  }
}

TEST(EnsembleModel, WritesTokensWithTheProbabilitiesThatItScoresThemWith) { expect_written_as_scored(15, 24); }

// A cache has room for 64 tokens beyond the longest prompt, and grows twice here.
TEST(EnsembleModel, WritesLongTextsToo) { expect_written_as_scored(180, 190); }

TEST(EnsembleModel, RefusesOtherVocabularies) {
  const model::DecoderShape one{.vocab = 257}, other{.vocab = 300};
  try {
    make_ensemble({one, other}, {.prior = {1, 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("vocabularies of 257 and 300"));
  }
}

// Prompts of two lengths, some alike, and more than one random number to each.
std::vector<model::GenerateRequest> some_requests() {
  const base::Random random(3);
  return {{{256, 1, 2}, random.for_index(0)}, {{256, 1, 2}, random.for_index(1)}, {{9, 9, 9}, random.for_index(2)},
          {{7}, random.for_index(3)},         {{8}, random.for_index(4)},         {{256, 4, 4}, random.for_index(5)}};
}

void expect_alike(const std::vector<model::GeneratedText>& found, const std::vector<model::GeneratedText>& expected, double apart) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i].ids) << i;
    ASSERT_EQ(found[i].log_probabilities.size(), expected[i].log_probabilities.size()) << i;
    for (size_t t = 0; t < found[i].log_probabilities.size(); ++t)
      EXPECT_NEAR(found[i].log_probabilities[t], expected[i].log_probabilities[t], apart) << i << ", token " << t;
  }
}

TEST(EnsembleModel, WritesTextsTogetherAsOneByOne) {
  for (const int64_t top_k : {0, 1}) {  // where one expert counts each text goes by itself
    SmallEnsemble ensemble({.prior = {1, 2, 3}, .top_k = top_k, .refresh = 4});
    expect_alike(ensemble.generate(some_requests(), 15, true), ensemble.generate(some_requests(), 15, false), 1e-4);
    std::vector<int32_t> some(32);  // texts end one after the other
    std::iota(some.begin(), some.end(), 0);
    const std::vector<model::GeneratedText> ended = ensemble.generate(some_requests(), 15, true, some);
    expect_alike(ended, ensemble.generate(some_requests(), 15, false, some), 1e-4);
    std::set<size_t> lengths;
    for (const model::GeneratedText& one : ended) lengths.insert(one.ids.size());
    EXPECT_GE(lengths.size(), 3u);
  }
}

TEST(EnsembleModelOnCuda, ScoresAndWritesAsOnACpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  SmallEnsemble here({.prior = {1, 2, 3}}), there({.prior = {1, 2, 3}});
  there.move_to(at::Device(at::kCUDA, 0), at::kFloat);
  const std::vector<ScoredTokens> rows{{{256, 1, 2, 3, 4, 5, 6, 200, 100, 17, 17, 17, 3, 9}, 1}, {{9, 8}, 1}, {{7, 7, 7, 7, 1, 2, 3}, 3}};
  const auto expected = token_losses(here.evaluated(), rows), found = token_losses(there.evaluated(), rows);
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < found[r].size(); ++i) EXPECT_NEAR(found[r][i], expected[r][i], 1e-3) << r << ", " << i;
  expect_alike(there.generate(some_requests(), 15), here.generate(some_requests(), 15), 1e-3);
  there.move_to(at::Device(at::kCUDA, 0), at::kBFloat16);
  const auto low = token_losses(there.evaluated(), rows);
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < low[r].size(); ++i) EXPECT_NEAR(low[r][i], expected[r][i], 0.02) << r << ", " << i;
}

}  // namespace
}  // namespace cairn::evaluate
