#include "model/losses/grpo.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/minimum.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr int64_t kRollouts = 3, kRolloutLength = 5, kRolloutVocab = 7;

struct Rollouts {
  at::Tensor logits =
      at::sin(at::arange(kRollouts * kRolloutLength * kRolloutVocab, at::kDouble) * 1.7).view({kRollouts, kRolloutLength, kRolloutVocab}) *
      3;
  mesh::Batch batch;

  Rollouts() {
    at::Tensor targets = (at::arange(kRollouts * kRolloutLength) * 5 % kRolloutVocab).view({kRollouts, kRolloutLength}).clone();
    targets[0][0] = targets[0][1] = targets[2][4] = -100;  // sequences of 3, 5 and 4 targets
    batch.ids = at::arange(kRollouts);
    batch.fields["targets"] = {targets};
    batch.fields["advantages"] = {at::tensor({1.5, -0.7, 0.4}, at::kDouble)};
    const at::Tensor moved = at::cos(at::arange(kRollouts * kRolloutLength, at::kDouble) * 2.3).view({kRollouts, kRolloutLength});
    batch.fields["old_log_probs"] = {log_p(logits, 1.0).detach() + 0.5 * moved};
    batch.fields["reference_log_probs"] = {log_p(logits, 1.0).detach() - 0.3 * moved};
  }

  // [samples, length]; 0 where there is no target.
  at::Tensor log_p(const at::Tensor& of, double temperature) const {
    const at::Tensor targets = batch.field("targets");
    return (of / temperature).log_softmax(-1).gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2) * targets.ge(0);
  }

  // The sum that the trainer divides by the count of the step.
  at::Tensor loss(const at::Tensor& of, const GrpoOptions& o) const {
    const at::Tensor u = log_p(of, o.temperature), a = batch.field("advantages").unsqueeze(1), is_target = batch.field("targets").ge(0);
    const at::Tensor ratio = (batch.fields.contains("old_log_probs") ? u - batch.field("old_log_probs") : u - u.detach()).exp();
    at::Tensor l = -at::minimum(ratio * a, ratio.clamp(1 - o.clip_low, 1 + o.clip_high) * a);
    if (o.beta > 0) {
      const at::Tensor apart = batch.field("reference_log_probs") - u;
      l = l + o.beta * (apart.exp() - apart - 1);
    }
    l = l * is_target;
    switch (o.normalisation) {
      case GrpoOptions::Normalisation::sequence:
        return (l.sum(1) / is_target.sum(1)).sum();
      case GrpoOptions::Normalisation::tokens:
        return l.sum();
      default:
        return l.sum() / static_cast<double>(o.length);
    }
  }
};

class GrpoWith : public testing::TestWithParam<GrpoOptions> {};

TEST_P(GrpoWith, GivesTheLossAndGradientOfPlainAutograd) {
  for (const bool on_policy : {false, true}) {
    Rollouts rollouts;
    if (on_policy) rollouts.batch.fields.erase("old_log_probs");
    at::AutoGradMode record(true);
    const at::Tensor leaf = rollouts.logits.clone().requires_grad_();
    const at::Tensor loss = rollouts.loss(leaf, GetParam());
    const at::Tensor expected = torch::autograd::grad({loss * 0.25}, {leaf})[0];

    at::NoGradGuard no_grad;
    const auto objective = make_grpo(GetParam());
    Values values, gradients, alone;
    values.put("logits", rollouts.logits.clone());
    alone.put("logits", rollouts.logits.clone());
    const Losses losses = objective->evaluate(values, rollouts.batch, &gradients, 0.25, mesh::Axes{});
    EXPECT_NEAR(losses.sum.item<double>(), loss.item<double>(), 1e-12);
    EXPECT_NEAR(objective->evaluate(alone, rollouts.batch, nullptr, 1, mesh::Axes{}).sum.item<double>(), loss.item<double>(), 1e-12);
    EXPECT_LT((gradients.get("logits") - expected).abs().max().item<double>(), 1e-12);
    EXPECT_EQ(losses.count.item<double>(), GetParam().normalisation == GrpoOptions::Normalisation::tokens ? 12 : 3);
  }
}
using By = GrpoOptions::Normalisation;
INSTANTIATE_TEST_SUITE_P(Options, GrpoWith,
                         testing::Values(GrpoOptions{}, GrpoOptions{.normalisation = By::tokens, .beta = 0.04},
                                         GrpoOptions{.normalisation = By::length, .clip_high = 0.28, .length = 9},
                                         GrpoOptions{.beta = 0.3, .temperature = 0.7}));

TEST(Grpo, ReportsWhatIsClippedAndHowFarThePolicyIs) {
  Rollouts rollouts;
  Values values;
  values.put("logits", rollouts.logits.clone());
  rollouts.batch.fields["old_log_probs"] = {rollouts.log_p(rollouts.logits, 1.0)};
  const Losses same = make_grpo({})->evaluate(values, rollouts.batch, nullptr, 1, mesh::Axes{});
  EXPECT_NEAR(same.measures.abs().sum().item<double>(), 0, 1e-12);
  rollouts.batch.fields["old_log_probs"] = {rollouts.log_p(rollouts.logits, 1.0) - 1};  // every ratio is e
  const Losses moved = make_grpo({})->evaluate(values, rollouts.batch, nullptr, 1, mesh::Axes{});
  EXPECT_NEAR(moved.measures[0].item<double>(), 3, 1e-12) << "all targets of 3 sequences";
  EXPECT_NEAR(moved.measures[1].item<double>(), 3 * (std::exp(1.0) - 2), 1e-12);
}

}  // namespace
}  // namespace cairn::model
