#include "model/losses/retrieval.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/aten.h"
#include "model/decoder/decoder.h"

namespace cairn::model {
namespace {

constexpr int64_t kSamples = 5, kEmbed = 7;

mesh::Batch scored_batch() {
  mesh::Batch batch;
  batch.ids = at::arange(kSamples, at::kLong);
  batch.fields["pair_scores"] = {at::linspace(-2, 3, 2 * kSamples, at::kDouble).view({kSamples, 2})};
  batch.fields["teacher_scores"] = {(at::arange(2 * kSamples * kSamples, at::kFloat) * 0.37f).sin().view({kSamples, 2 * kSamples}) * 3};
  return batch;
}

at::Tensor vectors_of(at::ScalarType dtype) {
  return ((at::arange(3 * kSamples * kEmbed, at::kDouble) * 0.71).cos() * 1.3).view({kSamples, 3, kEmbed}).to(dtype);
}

double number(const at::Tensor& t, std::initializer_list<int64_t> at) {
  at::Tensor one = t;
  for (const int64_t i : at) one = one[i];
  return one.item<double>();
}

double dot(const at::Tensor& v, int64_t query, int64_t sample, int64_t which) {
  double sum = 0;
  for (int64_t e = 0; e < kEmbed; ++e) sum += number(v, {query, 0, e}) * number(v, {sample, which, e});
  return sum;
}

// The equations of the header, element by element.
double by_loops(const RetrievalLossOptions& o, const at::Tensor& v, const mesh::Batch& batch) {
  const at::Tensor u = batch.field("teacher_scores"), t = batch.field("pair_scores");
  double total = 0;
  for (int64_t i = 0; i < kSamples; ++i) {
    const double apart = dot(v, i, i, 1) - dot(v, i, i, 2) - (number(t, {i, 0}) - number(t, {i, 1}));
    total += o.pair_weight * apart * apart;
    double in_batch = 0, teacher_sum = 0, student_sum = 0;
    for (int64_t which : {1, 2})
      for (int64_t j = 0; j < kSamples; ++j) {
        const double wanted = number(u, {i, i}) - number(u, {i, (which - 1) * kSamples + j});
        const double margin = dot(v, i, i, 1) - dot(v, i, j, which);
        if (o.in_batch_loss == PassageLoss::margin_mse && i != j) in_batch += (margin - wanted) * (margin - wanted) / 2 / (kSamples - 1);
        teacher_sum += std::exp(number(u, {i, (which - 1) * kSamples + j}));
        student_sum += std::exp(dot(v, i, j, which));
      }
    for (int64_t which : {1, 2})
      for (int64_t j = 0; j < kSamples; ++j) {
        const double log_p = dot(v, i, j, which) - std::log(student_sum),
                     log_t = number(u, {i, (which - 1) * kSamples + j}) - std::log(teacher_sum);
        if (o.in_batch_loss == PassageLoss::kl_list) in_batch += std::exp(log_t) * (log_t - log_p);
        if (o.in_batch_loss == PassageLoss::labels && which == 1 && i == j) in_batch -= log_p;
      }
    total += o.in_batch_weight * in_batch;
  }
  return total;
}

class RetrievalLosses : public testing::TestWithParam<PassageLoss> {};

TEST_P(RetrievalLosses, EqualADoubleLoopAndTheirGradientsItsDifferences) {
  const RetrievalLossOptions options{.pair_weight = 1.2, .in_batch_weight = 0.75, .in_batch_loss = GetParam()};
  const auto objective = make_retrieval(options);
  const mesh::Batch batch = scored_batch();
  const at::Tensor vectors = vectors_of(at::kDouble);
  Values outputs, gradients;
  outputs.put("vectors", vectors);
  const double weight = 0.3;
  const Losses losses = objective->evaluate(outputs, batch, &gradients, weight, {});
  EXPECT_NEAR(losses.sum.item<double>(), by_loops(options, vectors, batch), 1e-6);
  EXPECT_NEAR(losses.per_sample.sum().item<double>(), losses.sum.item<double>(), 1e-9);
  EXPECT_EQ(losses.count.item<int64_t>(), kSamples);
  EXPECT_EQ(losses.measures.size(0), static_cast<int64_t>(objective->measures().size()));
  const at::Tensor gradient = gradients.take("vectors");
  constexpr double kStep = 1e-5;
  for (int64_t place = 0; place < vectors.numel(); place += 3) {
    const at::Tensor up = vectors.clone(), down = vectors.clone();
    up.view({-1})[place] += kStep;
    down.view({-1})[place] -= kStep;
    const double slope = weight * (by_loops(options, up, batch) - by_loops(options, down, batch)) / (2 * kStep);
    EXPECT_NEAR(gradient.view({-1})[place].item<double>(), slope, 1e-6 * (1 + std::abs(slope))) << place;
  }
}

std::string name_of(const testing::TestParamInfo<PassageLoss>& of) {
  return of.param == PassageLoss::margin_mse ? "margin_mse" : of.param == PassageLoss::kl_list ? "kl_list" : "labels";
}
INSTANTIATE_TEST_SUITE_P(Every, RetrievalLosses, testing::Values(PassageLoss::margin_mse, PassageLoss::kl_list, PassageLoss::labels),
                         name_of);

TEST(RetrievalMeasures, CountAccuraciesAndTheTeachersScoresOfOthers) {
  const auto objective = make_retrieval({});
  mesh::Batch batch = scored_batch();
  batch.fields["teacher_scores"] = {at::ones({kSamples, 2 * kSamples}) * 0.25};
  batch.field("teacher_scores").diagonal().fill_(4);
  batch.field("teacher_scores").diagonal(kSamples).fill_(3);
  at::Tensor vectors = at::zeros({kSamples, 3, kEmbed});
  for (int64_t i = 0; i < kSamples; ++i) vectors[i][0][i] = 1, vectors[i][i < 4 ? 1 : 2][i] = 1;  // the last one is the wrong way round
  Values outputs;
  outputs.put("vectors", vectors);
  const at::Tensor measured = objective->evaluate(outputs, batch, nullptr, 1, {}).measures / static_cast<double>(kSamples);
  EXPECT_NEAR(measured[1].item<double>(), 0.8, 1e-9);   // pair_accuracy
  EXPECT_NEAR(measured[3].item<double>(), 0.8, 1e-9);   // in_batch_accuracy
  EXPECT_NEAR(measured[4].item<double>(), 1, 1e-9);     // teacher_accuracy
  EXPECT_NEAR(measured[5].item<double>(), 0.25, 1e-9);  // teacher_score
}

TEST(RetrievalPairs, SeparateOverSamples) {
  const auto objective = make_retrieval_pairs({});
  EXPECT_EQ(objective->separates(), Objective::Separates::samples);
  const mesh::Batch batch = scored_batch();
  const at::Tensor vectors = vectors_of(at::kFloat);
  const auto sum = [&](int64_t begin, int64_t end) {
    Values outputs;
    outputs.put("vectors", vectors.slice(0, begin, end));
    return objective->evaluate(outputs, mesh::slice(batch, begin, end), nullptr, 1, {}).sum.item<double>();
  };
  EXPECT_NEAR(sum(0, 5), sum(0, 2) + sum(2, 5), 1e-6);
  EXPECT_NEAR(sum(0, 5), by_loops({.pair_weight = 1, .in_batch_weight = 0}, vectors, batch), 1e-5);
}

TEST(LateInteraction, EqualsADoubleLoop) {
  const at::Tensor queries = (at::arange(3 * 4 * 5, at::kFloat) * 0.9f).sin().view({3, 4, 5}),
                   passages = (at::arange(6 * 7 * 5, at::kFloat) * 0.7f).cos().view({6, 7, 5});
  const at::Tensor asked = at::tensor({4, 1, 3}, at::kLong), found = at::tensor({7, 2, 1, 5, 6, 3}, at::kLong);
  const at::Tensor scores = late_interaction(queries, asked, passages, found);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 6; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < asked[i].item<int64_t>(); ++t) {
        double best = -1e30;
        for (int64_t u = 0; u < found[j].item<int64_t>(); ++u) best = std::max(best, (queries[i][t] * passages[j][u]).sum().item<double>());
        sum += best;
      }
      EXPECT_NEAR(number(scores, {i, j}), sum, 1e-5) << i << " " << j;
    }
}

}  // namespace
}  // namespace cairn::model
