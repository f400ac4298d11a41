#include "model/objective.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::model {
namespace {

mesh::Batch two_samples() {
  mesh::Batch batch;
  batch.ids = at::arange(2);
  batch.fields["targets"] = {at::tensor({0, 2, -100, 1}, at::kLong).view({2, 2})};
  return batch;
}

TEST(NextToken, GivesSumsAndCountsNotMeans) {
  const at::Tensor logits = at::linspace(-1, 1, 12, at::kDouble).view({2, 2, 3});
  Values values;
  values.put("logits", logits.clone());
  const Losses losses = make_next_token()->evaluate(values, two_samples(), nullptr, 1.0, mesh::Axes{});
  const at::Tensor by_row = -logits.view({4, 3}).log_softmax(-1);
  const double first = by_row[0][0].item<double>() + by_row[1][2].item<double>(), second = by_row[3][1].item<double>();
  EXPECT_NEAR(losses.sum.item<double>(), first + second, 1e-12);
  EXPECT_EQ(losses.count.item<int64_t>(), 3);
  EXPECT_NEAR(losses.per_sample[0].item<double>(), first, 1e-12);
  EXPECT_NEAR(losses.per_sample[1].item<double>(), second, 1e-12);
}

TEST(NextToken, WeighsSamplesInLossAndGradient) {
  mesh::Batch batch = two_samples();
  batch.weights = at::tensor({0.0, 3.0}, at::kDouble);
  const at::Tensor logits = at::linspace(-1, 1, 12, at::kDouble).view({2, 2, 3});
  Values values, gradients;
  values.put("logits", logits.clone());
  const Losses losses = make_next_token()->evaluate(values, batch, &gradients, 0.5, mesh::Axes{});
  const at::Tensor row = logits.view({4, 3})[3];
  EXPECT_NEAR(losses.sum.item<double>(), -3 * row.log_softmax(0)[1].item<double>(), 1e-12);
  const at::Tensor expected = (row.softmax(0) - at::tensor({0.0, 1.0, 0.0}, at::kDouble)) * 1.5;
  const at::Tensor found = gradients.get("logits").view({4, 3});
  EXPECT_TRUE(at::allclose(found[3], expected, 0, 1e-12));
  EXPECT_EQ(found.slice(0, 0, 3).abs().sum().item<double>(), 0);  // weight 0, and an ignored target
}

}  // namespace
}  // namespace cairn::model
