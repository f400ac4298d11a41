#include "model/classifier/cnn3d.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/classifier/batch_norm_block.h"
#include "model/pass_options.h"

namespace cairn::model {
namespace {

constexpr int64_t kChannels = 3;

at::Tensor normals(std::vector<int64_t> shape, const char* name) {
  at::Tensor tensor = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < tensor.numel(); ++i)
    tensor.mutable_data_ptr<double>()[i] = static_cast<double>(base::Random(3).for_name(name).normal(static_cast<uint64_t>(i))) + 0.2;
  return tensor;
}

class Two final : public Weights {
 public:
  at::Tensor get(mesh::ParamId id) const override { return id.first == 0 ? gain_ : shift_; }

 private:
  at::Tensor gain_ = at::tensor({0.5, 1.5, 2.0}, at::kDouble), shift_ = at::tensor({0.1, -0.2, 0.3}, at::kDouble);
};

class Kept final : public mesh::Gradients {
 public:
  void outer(mesh::ParamId, const at::Tensor&, const at::Tensor&) override { FAIL(); }
  void add(mesh::ParamId id, const at::Tensor& gradient) override { gradients[id.first] = gradient.clone(); }
  void add_rows(mesh::ParamId, const at::Tensor&, const at::Tensor&) override { FAIL(); }
  void expect_more(mesh::ParamId, int64_t) override {}
  at::Tensor gradients[2];
};

struct Passed {
  at::Tensor y, dx, dgain, dshift;
  Buffers buffers;
};

// Forward and backward of one normalisation of x, in groups of so many samples.
Passed pass(const at::Tensor& x, const at::Tensor& dy, int64_t norm_samples, comm::World* world = nullptr) {
  const auto block = make_batch_norm_block(
      {.name = "n", .reads = "x", .writes = "y", .gain = {0}, .shift = {1}, .values = x.numel() / x.size(0), .channels = kChannels});
  const Two weights;
  mesh::Axes axes;
  if (world) axes.put("samples", world->everyone());
  Passed passed;
  add_batch_norm_buffers(passed.buffers, "n", kChannels, at::TensorOptions().dtype(at::kDouble));
  const Call call{.weights = weights, .buffers = passed.buffers, .axes = axes, .norm_samples = norm_samples};
  Values values, gradients;
  values.put("x", x);
  Saved saved;
  block->forward(values, &saved, call);
  passed.y = values.get("y").clone();
  gradients.put("y", dy);
  block->backward_input(gradients, saved, call);
  passed.dx = gradients.get("x");
  Kept kept;
  block->backward_weight(std::move(saved), kept, call);
  passed.dgain = kept.gradients[0], passed.dshift = kept.gradients[1];
  return passed;
}

double apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

const std::vector<int64_t> kShape{8, kChannels, 2, 3, 3};

TEST(BatchNormBlock, HasTheGradientsOfAutograd) {
  const at::Tensor x = normals(kShape, "x").requires_grad_(), dy = normals(kShape, "dy");
  const Passed made = pass(x.detach(), dy, 4);
  const Two weights;
  const at::Tensor gain = weights.get({0}).clone().requires_grad_(), shift = weights.get({1}).clone().requires_grad_();
  Buffers buffers;
  add_batch_norm_buffers(buffers, "n", kChannels, at::TensorOptions().dtype(at::kDouble));
  const mesh::Axes axes;
  const at::AutoGradMode record(true);
  const Call call{.weights = weights, .buffers = buffers, .axes = axes, .norm_samples = 4};
  const at::Tensor y = batch_norm(x, gain, shift, "n", call).clamp_min(0);
  const auto found = torch::autograd::grad({y}, {x, gain, shift}, {dy});
  EXPECT_LT(apart(made.y, y.detach()), 1e-12);
  EXPECT_LT(apart(made.dx, found[0]), 1e-12);
  EXPECT_LT(apart(made.dgain, found[1]), 1e-11);
  EXPECT_LT(apart(made.dshift, found[2]), 1e-11);
  EXPECT_LT(apart(made.buffers.at("n.pending"), buffers.at("n.pending")), 1e-9);
}

TEST(BatchNormBlock, NormalisesGroupsAsIfEachWereAlone) {
  const at::Tensor x = normals(kShape, "x"), dy = normals(kShape, "dy");
  const Passed together = pass(x, dy, 2);
  at::Tensor dgain = at::zeros({kChannels}, at::kDouble);
  for (int64_t group = 0; group < 4; ++group) {
    const Passed alone = pass(x.narrow(0, 2 * group, 2), dy.narrow(0, 2 * group, 2), 0);
    EXPECT_LT(apart(together.y.narrow(0, 2 * group, 2), alone.y), 1e-12);
    EXPECT_LT(apart(together.dx.narrow(0, 2 * group, 2), alone.dx), 1e-12);
    dgain += alone.dgain;
  }
  EXPECT_LT(apart(together.dgain, dgain), 1e-11);
  EXPECT_GT(apart(together.y, pass(x, dy, 0).y), 1e-2);  // groups matter
}

TEST(BatchNormBlock, AggregatesGroupsToTheStatisticsOfAllSamples) {
  const at::Tensor x = normals(kShape, "x");
  Passed made = pass(x, normals(kShape, "dy"), 2);
  commit_batch_norms(
      made.buffers, false, [](const at::Tensor&) {}, /*momentum=*/1);
  const at::Tensor by_group = x.view({4, 2, kChannels, -1}).transpose(1, 2).reshape({4, kChannels, -1});
  const at::Tensor means = by_group.mean(2), variances = by_group.var(2, /*unbiased=*/false);
  const at::Tensor mean = means.mean(0), variance = variances.mean(0) + (means - mean).square().mean(0);
  EXPECT_LT(apart(made.buffers.at("n.running_mean"), mean), 1e-12);
  EXPECT_LT(apart(made.buffers.at("n.running_var"), variance), 1e-9);  // of the reciprocal deviations that the kernel keeps
}

TEST(BatchNormBlock, MakesOneGroupOfTheSamplesOfNeighbours) {
  const at::Tensor x = normals(kShape, "x"), dy = normals(kShape, "dy");
  const Passed whole = pass(x, dy, 4);
  harness::on_ranks(4, [&](comm::World& world) {  // two samples each: groups on ranks 0, 1 and 2, 3
    const int64_t first = 2 * world.rank();
    const Passed part = pass(x.narrow(0, first, 2).contiguous(), dy.narrow(0, first, 2).contiguous(), 4, &world);
    EXPECT_LT(apart(part.y, whole.y.narrow(0, first, 2)), 1e-12);
    EXPECT_LT(apart(part.dx, whole.dx.narrow(0, first, 2)), 1e-12);
    at::Tensor sums = at::stack({part.dgain, part.dshift});
    world.everyone().all_reduce(sums, comm::Reduce::sum, {comm::Purpose::gradient, "check"}).wait_host();
    EXPECT_LT(apart(sums[0], whole.dgain), 1e-11);
    EXPECT_LT(apart(sums[1], whole.dshift), 1e-11);
  });
}

TEST(BatchNormBlock, EvaluatesByTheRunningStatistics) {
  const Two weights;
  Buffers buffers;
  add_batch_norm_buffers(buffers, "n", kChannels, at::TensorOptions().dtype(at::kDouble));
  buffers.at("n.running_mean").fill_(0.5);
  const mesh::Axes axes;
  const auto block = make_batch_norm_block({.name = "n", .reads = "x", .writes = "y", .gain = {0}, .shift = {1}, .channels = kChannels});
  const at::Tensor x = normals(kShape, "x");
  Values values;
  values.put("x", x);
  block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = axes, .needs = {false, false}, .norm_samples = 2});
  const at::Tensor gain = weights.get({0}).view({1, kChannels, 1, 1, 1}), shift = weights.get({1}).view({1, kChannels, 1, 1, 1});
  EXPECT_LT(apart(values.get("y"), ((x - 0.5) / std::sqrt(1 + 1e-5) * gain + shift).clamp_min(0)), 1e-12);
  PassOptions options;
  options.batch_statistics = true;
  Values again;
  again.put("x", x);
  block->forward(again, nullptr, {.weights = weights, .buffers = buffers, .axes = axes, .needs = {false, false}, .options = options});
  EXPECT_LT(apart(again.get("y"), pass(x, x, 0).y), 1e-12);
}

TEST(Cnn3d, ReadsClipsOfAnyShape) {
  const auto model = make_cnn3d({.width = 16, .layers = 4, .classes = 8});
  EXPECT_NEAR(static_cast<double>(model->elements()), 1e5, 2e4);
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kFloat);
  initialize_parameters(*model, flat, base::Random(5));
  const FlatWeights weights(layout, flat);
  Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kFloat));
  const mesh::Axes axes;
  for (const auto& [frames, size] : {std::pair{16, 32}, {4, 16}, {8, 23}}) {
    Values values;
    values.put("pixels", at::rand({3, 1, frames, size, size}));
    for (const auto& block : model->blocks()) block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = axes});
    EXPECT_EQ(values.get("logits").sizes(), (std::vector<int64_t>{3, 8})) << frames << " x " << size;
  }
}

TEST(Cnn3d, HasTheGradientsOfAutograd) {
  const auto model = make_cnn3d({.width = 2, .layers = 3, .classes = 3});
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(*model, flat, base::Random(5));
  const at::Tensor clips = normals({4, 1, 8, 9, 9}, "clips"), dy = normals({4, 3}, "dlogits");
  Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kDouble));
  const mesh::Axes axes;

  const at::Tensor leaf = flat.clone().requires_grad_();
  const FlatWeights plain_weights(layout, leaf);
  const at::AutoGradMode record(true);
  Values values;
  values.put("pixels", clips);
  for (const auto& block : model->blocks()) block->plain(values, {.weights = plain_weights, .buffers = buffers, .axes = axes});
  const at::Tensor expected = torch::autograd::grad({values.get("logits")}, {leaf}, {dy})[0];

  const at::NoGradGuard no_grad;
  class Flat final : public mesh::Gradients {
   public:
    Flat(const mesh::FlatLayout& layout, at::Tensor into) : layout_(layout), into_(std::move(into)) {}
    void outer(mesh::ParamId, const at::Tensor&, const at::Tensor&) override { FAIL(); }
    void add(mesh::ParamId id, const at::Tensor& gradient) override { layout_.view(into_, id).add_(gradient); }
    void add_rows(mesh::ParamId, const at::Tensor&, const at::Tensor&) override { FAIL(); }
    void expect_more(mesh::ParamId, int64_t) override {}

   private:
    const mesh::FlatLayout& layout_;
    at::Tensor into_;
  };
  const at::Tensor found = at::zeros_like(flat);
  Flat sink(layout, found);
  const FlatWeights weights(layout, flat);
  const Call call{.weights = weights, .buffers = buffers, .axes = axes};
  Values forward, gradients;
  forward.put("pixels", clips);
  std::vector<Saved> saved(model->blocks().size());
  for (size_t i = 0; i < saved.size(); ++i) model->blocks()[i]->forward(forward, &saved[i], call);
  gradients.put("logits", dy);
  for (size_t i = saved.size(); i-- > 0;) {
    model->blocks()[i]->backward_input(gradients, saved[i], call);
    model->blocks()[i]->backward_weight(std::move(saved[i]), sink, call);
  }
  EXPECT_LT(apart(found, expected), 1e-10);
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace cairn::model
