#include "kernels/cross_entropy.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

struct LossShape {
  int64_t rows, vocab;
};
constexpr LossShape kLossShapes[] = {{1, 1}, {3, 2}, {5, 97}, {33, 257}, {7, 1024}, {130, 1031}};

// Random targets with every third row ignored.
at::Tensor some_targets(int64_t rows, int64_t vocab) {
  const at::Tensor targets = integers(0, vocab, {rows}, 9);
  for (int64_t row = 2; row < rows; row += 3) targets[row] = kIgnoreTarget;
  return targets;
}

at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor ignored = targets == kIgnoreTarget;
  return -at::log_softmax(logits, 1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1).masked_fill(ignored, 0);
}

TEST(CrossEntropy, LossAndLogSumExpMatchDouble) {
  for (const auto& [rows, vocab] : kLossShapes) {
    const at::Tensor logits = normal({rows, vocab}, 1) * 5, targets = some_targets(rows, vocab), loss = at::empty({rows}),
                     lse = at::empty({rows});
    with_threads([&] {
      cross_entropy(loss, lse, logits, targets);
      expect_close(loss, plain_loss(wide(logits), targets), 16, "loss");
      expect_close(lse, at::logsumexp(wide(logits), {1}), 16, "lse");
    });
  }
}

TEST(CrossEntropy, GradientIsThatOfAutogradForOneScaleAndForOnePerRow) {
  for (const auto& [rows, vocab] : kLossShapes)
    for (const at::Tensor& scale : {at::scalar_tensor(0.25), normal({rows}, 3)}) {
      const at::Tensor logits = normal({rows, vocab}, 1) * 5, targets = some_targets(rows, vocab), loss = at::empty({rows}),
                       lse = at::empty({rows});
      const at::Tensor x = leaf(logits), expected = gradients(plain_loss(x, targets), scale.expand({rows}), {x})[0];
      const at::Tensor apart = logits.clone(), together = logits.clone();
      cross_entropy(loss, lse, apart, targets);
      cross_entropy_backward(apart, lse, targets, scale);
      expect_close(apart, expected, 32, "gradient");
      cross_entropy_and_gradient(loss, lse, together, targets, scale);
      expect_close(together, expected, 32, "gradient in one pass");
      expect_close(loss, plain_loss(wide(logits), targets), 16, "loss in one pass");
      expect_close(lse, at::logsumexp(wide(logits), {1}), 16, "lse in one pass");
    }
}

TEST(CrossEntropy, ReferenceInDoubleIsExact) {
  const at::Tensor x = leaf(normal({5, 11}, 1)), targets = some_targets(5, 11), scale = at::scalar_tensor(2.0, at::kDouble);
  const at::Tensor expected = gradients(plain_loss(x, targets), scale.expand({5}), {x})[0];
  const at::Tensor logits = x.detach().clone(), loss = at::empty({5}, at::kDouble), lse = at::empty({5}, at::kDouble);
  cross_entropy_and_gradient(loss, lse, logits, targets, scale);
  expect_close(loss, plain_loss(x.detach(), targets), 16, "loss");
  expect_close(logits, expected, 16, "gradient");
}

TEST(CrossEntropy, SurvivesHugeLogitsAndShowsNan) {
  const at::Tensor logits = at::zeros({2, 40}), targets = at::zeros({2}, at::kLong), loss = at::empty({2}), lse = at::empty({2});
  logits[0][3] = 1e30f;
  logits[1][5] = std::numeric_limits<float>::quiet_NaN();
  cross_entropy(loss, lse, logits, targets);
  EXPECT_EQ(loss[0].item<float>(), 1e30f);
  EXPECT_TRUE(std::isnan(loss[1].item<float>()));
}

TEST(CrossEntropy, RefusesATargetOutsideTheVocabulary) {
  const at::Tensor targets = at::tensor({int64_t{1}, int64_t{7}});
  const std::string error = error_of([&] { cross_entropy(at::empty({2}), at::empty({2}), at::zeros({2, 5}), targets); });
  EXPECT_EQ(error, "target 7 of row 1 is outside the vocabulary of 5");
}

}  // namespace
}  // namespace cairn::kernels
