// A vision transformer of two layers, for islands that share a GPU: patches of 4 by 4 pixels, a width of 64, four heads, gradients by
// autograd. On a GPU its passes are recorded once: started one by one, its kernels would take some ten times as long to start as to run.
#include <cmath>
#include <mutex>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "proofs/island_pilot.h"
#include "train/steps/device_graph.h"

namespace cairn::study {
namespace {

constexpr int64_t kPatch = 4, kWidth = 64, kHeads = 4, kInside = 128, kDepth = 2;
constexpr int64_t kSide = Mixture::kPixels / kPatch, kTokens = kSide * kSide;

class SmallVit final : public PilotModel {
 public:
  SmallVit(uint64_t seed, const at::Device& device) : random_(base::Random(seed).for_purpose("vit")), device_(device) {
    matrix("patches", kPatch * kPatch, kWidth);
    add("places", normals("places", {kTokens, kWidth}) * 0.02);
    for (int64_t layer = 0; layer < kDepth; ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".";
      norm(name + "attention_norm");
      matrix(name + "qkv", kWidth, 3 * kWidth);
      matrix(name + "out", kWidth, kWidth);
      norm(name + "mlp_norm");
      matrix(name + "up", kWidth, kInside);
      matrix(name + "down", kInside, kWidth);
    }
    norm("norm");
    matrix("head", kWidth, Mixture::kClasses);
    int64_t all = 0;
    for (const mesh::NamedTensor& one : gradients_) all += one.tensor.numel();
    together_ = at::zeros({all}, at::TensorOptions().dtype(at::kFloat).device(device_));
    all = 0;
    for (mesh::NamedTensor& one : gradients_) {
      one.tensor = together_.narrow(0, all, one.tensor.numel()).view(one.tensor.sizes());
      all += one.tensor.numel();
    }
  }

  void learn(const Mixture::Examples& batch) override {
    constexpr int kBefore = 3;  // libraries set themselves up, which cannot be recorded
    if (!device_.is_cuda()) return pass(batch);
    if (passes_ == 0) batch_ = {at::empty_like(batch.x), at::empty_like(batch.y)};
    CAIRN_CHECK(batch.x.sizes() == batch_.x.sizes(), "a batch of {} after batches of {}", batch.x.size(0), batch_.x.size(0));
    batch_.x.copy_(batch.x);
    batch_.y.copy_(batch.y);
    if (passes_++ < kBefore) return pass(batch_);
    if (!graph_) {
      static std::mutex one_at_a_time;  // islands are threads, and a recording waits for the whole GPU before it begins
      const std::lock_guard guard(one_at_a_time);
      graph_ = train::make_cuda_graph();
      graph_->capture([&] { pass(batch_); });
    }
    graph_->replay();
  }
  at::Tensor squares() const override { return together_.square().sum(); }

 private:
  void pass(const Mixture::Examples& batch) {
    const at::AutoGradMode capture(true);
    std::vector<at::Tensor> leaves;
    for (const mesh::NamedTensor& one : parameters_) leaves.push_back(one.tensor.detach().requires_grad_());
    const at::Tensor loss = at::cross_entropy_loss(scores_by(leaves, batch.x), batch.y);
    std::vector<at::Tensor> found = torch::autograd::grad({loss}, leaves);
    for (at::Tensor& one : found) one = one.reshape({-1});
    const at::NoGradGuard no_grad;
    at::cat_out(together_, found);
  }

  at::Tensor normals(const std::string& name, const std::vector<int64_t>& shape) const {
    at::Tensor values = at::empty(shape, at::kFloat);
    random_.for_name(name).fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
    return values.to(device_);
  }
  void matrix(const std::string& name, int64_t in, int64_t out) {
    add(name + ".weight", normals(name, {in, out}) / std::sqrt(static_cast<double>(in)));
    add(name + ".bias", at::zeros({out}, at::TensorOptions().dtype(at::kFloat).device(device_)));
  }
  void norm(const std::string& name) {
    add(name + ".weight", at::ones({kWidth}, at::TensorOptions().dtype(at::kFloat).device(device_)));
    add(name + ".bias", at::zeros({kWidth}, at::TensorOptions().dtype(at::kFloat).device(device_)));
  }

  at::Tensor scores(const at::Tensor& x) const override {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> weights;
    for (const mesh::NamedTensor& one : parameters_) weights.push_back(one.tensor);
    return scores_by(weights, x);
  }

  // Weights are asked for in the order in which they were added.
  static at::Tensor scores_by(const std::vector<at::Tensor>& weights, const at::Tensor& images) {
    size_t next = 0;
    const auto take = [&]() -> const at::Tensor& { return weights[next++]; };
    const auto linear = [&](const at::Tensor& x) {
      const at::Tensor &w = take(), &b = take();
      return at::linear(x, w.t(), b);
    };
    const auto normed = [&](const at::Tensor& x) {
      const at::Tensor &w = take(), &b = take();
      return at::layer_norm(x, {kWidth}, w, b);
    };
    const int64_t batch = images.size(0);
    at::Tensor x = images.view({batch, kSide, kPatch, kSide, kPatch}).transpose(2, 3).reshape({batch, kTokens, kPatch * kPatch});
    x = linear(x);
    x = x + take();
    for (int64_t layer = 0; layer < kDepth; ++layer) {
      const at::Tensor qkv = linear(normed(x)).view({batch, kTokens, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
      const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
      x = x + linear(mixed.transpose(1, 2).reshape({batch, kTokens, kWidth}));
      x = x + linear(at::gelu(linear(normed(x))));
    }
    return linear(normed(x).mean(1));
  }

  base::Random random_;
  at::Device device_;
  at::Tensor together_;  // all gradients
  Mixture::Examples batch_;
  int passes_ = 0;
  std::unique_ptr<train::DeviceGraph> graph_;  // of a pass over batch_
};

}  // namespace

std::unique_ptr<PilotModel> make_small_vit(uint64_t seed, const at::Device& device) { return std::make_unique<SmallVit>(seed, device); }

}  // namespace cairn::study
