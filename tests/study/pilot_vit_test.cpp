// The vision transformer of the proofs of islands.
#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "proofs/island_pilot.h"

namespace cairn::study {
namespace {

Mixture::Examples some_images(const at::Device& device, int64_t from = 0) {
  const Mixture mixture(3, 64, 8, true, device);
  std::vector<int64_t> which;
  for (int64_t i = 0; i < 16; ++i) which.push_back(from + i);
  return mixture.pick(which);
}

at::Tensor gradient_of(const PilotModel& model) {
  std::vector<at::Tensor> all;
  for (const mesh::NamedTensor& one : model.gradients()) all.push_back(one.tensor.reshape({-1}));
  return at::cat(all).cpu();
}

// Against how the loss changes along a direction.
TEST(PilotVit, HasTheGradientOfItsLoss) {
  const auto model = make_small_vit(1, at::kCPU);
  const Mixture::Examples images = some_images(at::kCPU);
  model->learn(images);
  const at::Tensor gradient = gradient_of(*model), start = model->flat().clone();
  EXPECT_NEAR(model->squares().item<double>(), gradient.to(at::kDouble).square().sum().item<double>(), 1e-4);
  at::Tensor noise = at::empty_like(start);
  base::Random(7).fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
  // Half along the gradient, half anywhere, so that each entry counts and the change is no rounding.
  const at::Tensor way = gradient / gradient.norm() + noise / noise.norm();
  const auto loss_at = [&](double far) {
    model->put(start + far * way);
    return model->score(images).loss;
  };
  constexpr double kFar = 1e-2;
  const double slope = (loss_at(kFar) - loss_at(-kFar)) / (2 * kFar), told = (gradient * way).sum().item<double>();
  EXPECT_NEAR(slope / told, 1, 0.01) << slope << " and " << told;
}

// Recorded passes see new batches and weights that were changed in place.
TEST(PilotVit, RecordedOnAGpuIsAsOnACpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const at::Device gpu(at::kCUDA, 0);
  const auto here = make_small_vit(1, at::kCPU), there = make_small_vit(1, gpu);
  for (int step = 0; step < 7; ++step) {
    here->learn(some_images(at::kCPU, step));
    there->learn(some_images(gpu, step));
    const at::Tensor gradient = gradient_of(*here);
    EXPECT_LT(((gradient_of(*there) - gradient).norm() / gradient.norm()).item<double>(), 1e-3) << "step " << step;
    const at::Tensor next = here->flat() - 0.1 * gradient;
    here->put(next);
    there->put(next.to(gpu));
  }
}

}  // namespace
}  // namespace cairn::study
