#include "model/losses/dpo.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr int64_t kPairs = 3, kLength = 4, kVocab = 7;

struct Pairs {
  at::Tensor logits = at::sin(at::arange(2 * kPairs * kLength * kVocab, at::kDouble) * 1.7).view({2 * kPairs, kLength, kVocab}) * 3;
  at::Tensor reference = at::linspace(3, 9, 2 * kPairs, at::kDouble);  // losses
  mesh::Batch batch;

  Pairs() {
    at::Tensor targets = (at::arange(2 * kPairs * kLength) * 5 % kVocab).view({2 * kPairs, kLength}).clone();
    targets[0][0] = targets[3][1] = targets[3][2] = -100;
    batch.ids = at::arange(kPairs);
    batch.fields["targets"] = {targets};
    batch.fields["reference"] = {reference};
  }

  // Log-probabilities of the answers, differentiable.
  at::Tensor log_p(const at::Tensor& of) const {
    const at::Tensor targets = batch.field("targets");
    return (of.log_softmax(-1).gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2) * targets.ge(0)).sum(1);
  }
};

class DpoWith : public testing::TestWithParam<DpoOptions> {};

TEST_P(DpoWith, GivesTheLossAndGradientOfPlainAutograd) {
  Pairs pairs;
  for (const bool weighted : {false, true}) {
    if (weighted) pairs.batch.weights = at::tensor({2.0, 0.0, 0.5}, at::kDouble);
    at::AutoGradMode record(true);
    const at::Tensor leaf = pairs.logits.clone().requires_grad_();
    const at::Tensor rewards = GetParam().beta * (pairs.log_p(leaf) + pairs.reference), chosen = rewards.slice(0, 0, {}, 2),
                     rejected = rewards.slice(0, 1, {}, 2), s = at::scalar_tensor(GetParam().label_smoothing, at::kDouble);
    at::Tensor each = -(1 - s) * (chosen - rejected).sigmoid().log() - s * (rejected - chosen).sigmoid().log();
    if (weighted) each = each * pairs.batch.weights;
    const at::Tensor expected = torch::autograd::grad({each.sum() * 0.25}, {leaf})[0];

    at::NoGradGuard no_grad;
    Values values, gradients;
    values.put("logits", pairs.logits.clone());
    const auto objective = make_dpo(GetParam());
    EXPECT_EQ(objective->separates(), Objective::Separates::samples);
    const Losses losses = objective->evaluate(values, pairs.batch, &gradients, 0.25, mesh::Axes{});
    EXPECT_TRUE(at::allclose(losses.per_sample, each.detach(), 0, 1e-12));
    EXPECT_NEAR(losses.sum.item<double>(), each.sum().item<double>(), 1e-12);
    EXPECT_EQ(losses.count.item<int64_t>(), kPairs);
    EXPECT_TRUE(at::allclose(gradients.get("logits"), expected, 0, 1e-12));
    EXPECT_EQ(objective->measures(), (std::vector<std::string>{"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"}));
    const at::Tensor margin = (chosen - rejected).detach(),
                     means = at::stack({chosen.sum(), rejected.sum(), margin.sum(), margin.gt(0).sum()}).detach();
    EXPECT_TRUE(at::allclose(losses.measures, means.to(at::kDouble), 0, 1e-12));
  }
}
INSTANTIATE_TEST_SUITE_P(Options, DpoWith,
                         testing::Values(DpoOptions{}, DpoOptions{.beta = 0.7}, DpoOptions{.beta = 0.3, .label_smoothing = 0.2}));

TEST(Preference, IsTheLogarithmOfTwoWhereTheModelIsTheReference) {
  Pairs pairs;
  Values values;
  values.put("logits", pairs.logits.to(at::kFloat));
  mesh::Batch alone = pairs.batch;
  alone.ids = at::arange(2 * kPairs);
  const Losses reference = make_answer_losses()->evaluate(values, alone, nullptr, 1, mesh::Axes{});
  EXPECT_TRUE(at::allclose(reference.per_sample, -pairs.log_p(pairs.logits), 1e-6, 1e-5));
  pairs.batch.fields["reference"] = {reference.per_sample};
  const Losses losses = make_dpo({})->evaluate(values, pairs.batch, nullptr, 1, mesh::Axes{});
  EXPECT_NEAR(losses.sum.item<double>(), kPairs * std::log(2.0), 1e-15);
  EXPECT_EQ(losses.measures.abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace cairn::model
