#include "proofs/one_byte_model.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"

namespace cairn::study {
namespace {

constexpr int64_t kHeldOut = 4096;
constexpr double kApart = 0.55;  // the deviation of the clouds' centres, beside 1 of their points

at::Tensor normals(const base::Random& random, std::vector<int64_t> shape, double deviation) {
  at::Tensor x = at::empty(shape);
  kernels::fill_normal(x.view({-1}), random, 0, deviation);
  return x;
}

}  // namespace

SwappedClouds::SwappedClouds(uint64_t seed, std::vector<int64_t> widths, int64_t batch, int pretrain_steps)
    : seed_(seed), widths_(std::move(widths)), batch_(batch) {
  for (size_t i = 0; i + 1 < widths_.size(); ++i) {
    layout_.append(fmt::format("layers.{}.weight", i), {widths_[i + 1], widths_[i]});
    layout_.append(fmt::format("layers.{}.bias", i), {widths_[i + 1]});
  }
  const base::Random random = base::Random(seed).for_purpose("clouds");
  centres_ = normals(random.for_name("centres"), {widths_.back(), widths_.front()}, kApart);
  start_ = at::zeros({layout_.elements});
  for (size_t i = 0; i + 1 < widths_.size(); ++i)
    layout_.view(start_, {static_cast<int32_t>(2 * i), 1})
        .copy_(
            normals(random.for_name("start").for_index(i), {widths_[i + 1], widths_[i]}, 1 / std::sqrt(static_cast<double>(widths_[i]))));
  held_out_ = points(random.for_name("held out"), kHeldOut, true);
  pretrain(pretrain_steps);
}

SwappedClouds::Points SwappedClouds::points(const base::Random& random, int64_t count, bool swapped) const {
  const int64_t classes = widths_.back();
  at::Tensor labels = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i)
    labels.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(random.for_name("labels").below(static_cast<uint64_t>(i), static_cast<uint64_t>(classes)));
  const at::Tensor x = centres_.index_select(0, labels) + normals(random.for_name("points"), {count, widths_.front()}, 1);
  if (swapped) {
    int64_t* label = labels.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i)
      if (label[i] < 2) label[i] = 1 - label[i];
  }
  return {x, labels};
}

at::Tensor SwappedClouds::run(const model::Weights& at, const Points& points) const {
  at::Tensor x = points.x;
  for (size_t i = 0; i + 1 < widths_.size(); ++i) {
    if (i > 0) x = x.tanh();
    x = at::linear(x, at.get({static_cast<int32_t>(2 * i), 1}), at.get({static_cast<int32_t>(2 * i + 1), 1}));
  }
  return at::cross_entropy_loss(x, points.labels);
}

double SwappedClouds::loss(const model::Weights& at, const sync::BatchKey& batch) const {
  const base::Random random = base::Random(seed_).for_purpose("batch").for_index(static_cast<uint64_t>(batch.iteration));
  return run(at, points(random.for_index(static_cast<uint64_t>(batch.device)).for_index(static_cast<uint64_t>(batch.part)), batch_, true))
      .item<double>();
}

double SwappedClouds::held_out_loss(const at::Tensor& flat) const {
  const at::NoGradGuard no_gradients;
  return run(model::FlatWeights(layout_, flat), held_out_).item<double>();
}

at::Tensor SwappedClouds::gradient(const at::Tensor& flat) const {
  const at::AutoGradMode record(true);
  const at::Tensor leaf = flat.detach().clone().requires_grad_();
  return torch::autograd::grad({run(model::FlatWeights(layout_, leaf), held_out_)}, {leaf})[0];
}

void SwappedClouds::pretrain(int steps) {
  const base::Random random = base::Random(seed_).for_purpose("pretrain");
  at::Tensor first = at::zeros_like(start_), second = at::zeros_like(start_);
  for (int step = 1; step <= steps; ++step) {
    const at::AutoGradMode record(true);
    const at::Tensor leaf = start_.detach().clone().requires_grad_();
    const at::Tensor loss = run(model::FlatWeights(layout_, leaf), points(random.for_index(static_cast<uint64_t>(step)), 128, false));
    const at::Tensor gradient = torch::autograd::grad({loss}, {leaf})[0].detach();
    first.mul_(0.9).add_(gradient, 0.1);
    second.mul_(0.99).add_(gradient.square(), 0.01);
    start_.sub_(first / (1 - std::pow(0.9, step)) / ((second / (1 - std::pow(0.99, step))).sqrt() + 1e-8) * 3e-3);
  }
}

CloudReplica::CloudReplica(const SwappedClouds& clouds, const sync::OneByteOptions& options, uint64_t run)
    : flat(clouds.start().clone()), weights(clouds.layout(), flat), replica(options, run, [&] {
        sync::OneByteReplica::Model model{weights, {}, std::vector<bool>(clouds.layout().pieces.size(), true)};
        for (const auto& piece : clouds.layout().pieces) model.names.push_back(piece.name);
        return model;
      }()) {}

}  // namespace cairn::study
