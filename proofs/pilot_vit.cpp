// A vision transformer of two layers, for islands that share a GPU: patches of 4 by 4 pixels, a width of 64, four heads, gradients by
// autograd.
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "proofs/island_pilot.h"

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
  }

  void learn(const Mixture::Examples& batch) override {
    const at::AutoGradMode record(true);
    std::vector<at::Tensor> leaves;
    for (const mesh::NamedTensor& one : parameters_) leaves.push_back(one.tensor.detach().requires_grad_());
    const at::Tensor loss = at::cross_entropy_loss(scores_by(leaves, batch.x), batch.y);
    const std::vector<at::Tensor> found = torch::autograd::grad({loss}, leaves);
    for (size_t i = 0; i < found.size(); ++i) gradients_[i].tensor.copy_(found[i]);
  }

 private:
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
      return at::matmul(x, w) + b;
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
      const at::Tensor heat = at::softmax(at::matmul(qkv[0], qkv[1].transpose(2, 3)) / std::sqrt(static_cast<double>(kWidth / kHeads)), -1);
      x = x + linear(at::matmul(heat, qkv[2]).transpose(1, 2).reshape({batch, kTokens, kWidth}));
      x = x + linear(at::gelu(linear(normed(x))));
    }
    return linear(normed(x).mean(1));
  }

  base::Random random_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<PilotModel> make_small_vit(uint64_t seed, const at::Device& device) { return std::make_unique<SmallVit>(seed, device); }

}  // namespace cairn::study
