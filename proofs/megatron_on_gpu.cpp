// Megatron's fused block on one GPU, against the same block operation by operation.
#include <cmath>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/log.h"
#include "kernels/aten.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kEmbed = 2048, kHeads = 16, kHeadDim = kEmbed / kHeads, kMlp = 8192, kBatch = 8, kLength = 1024;

// A layer as one writes it down: a product for each matrix, an operation for each sign, gradients by autograd; attention by the library.
struct PlainLayer {
  static at::Tensor weight(int64_t out, int64_t in) {
    return (at::randn({out, in}, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA)) * 0.02).requires_grad_();
  }
  at::Tensor attention_norm = at::ones({kEmbed}, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA)).requires_grad_();
  at::Tensor mlp_norm = at::ones({kEmbed}, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA)).requires_grad_();
  at::Tensor q = weight(kEmbed, kEmbed), k = weight(kEmbed, kEmbed), v = weight(kEmbed, kEmbed), out = weight(kEmbed, kEmbed);
  at::Tensor gate = weight(kMlp, kEmbed), up = weight(kMlp, kEmbed), down = weight(kEmbed, kMlp);

  std::vector<at::Tensor> all() const { return {attention_norm, mlp_norm, q, k, v, out, gate, up, down}; }

  static at::Tensor norm(const at::Tensor& x, const at::Tensor& gain) {
    const at::Tensor wide = x.to(at::kFloat);
    return (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5)).to(at::kBFloat16) * gain;
  }
  static at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor first = x.narrow(-1, 0, kHeadDim / 2), second = x.narrow(-1, kHeadDim / 2, kHeadDim / 2);
    return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const {
    const auto heads = [](const at::Tensor& all) { return all.view({kBatch, kLength, kHeads, kHeadDim}).transpose(1, 2); };
    const at::Tensor in = norm(x, attention_norm);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(turned(heads(at::linear(in, q)), cos, sin), turned(heads(at::linear(in, k)), cos, sin),
                                         heads(at::linear(in, v)), {}, 0.0, /*is_causal=*/true);
    const at::Tensor after = x + at::linear(mixed.transpose(1, 2).reshape({kBatch, kLength, kEmbed}), out);
    const at::Tensor to_mlp = norm(after, mlp_norm);
    return after + at::linear(at::silu(at::linear(to_mlp, gate)) * at::linear(to_mlp, up), down);
  }
};

double plain_layer_seconds() {
  const PlainLayer layer;
  const auto format = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const at::Tensor x = at::randn({kBatch, kLength, kEmbed}, format).requires_grad_(), dy = at::randn({kBatch, kLength, kEmbed}, format);
  const at::Tensor angle = at::rand({kLength, kHeadDim / 2}, format), cos = angle.cos(), sin = angle.sin();
  std::vector<at::Tensor> of = layer.all();
  of.push_back(x);
  return gpu_seconds([&] { torch::autograd::grad({layer.forward(x, cos, sin)}, of, {dy}); });
}

}  // namespace

void prove_megatron_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  // What eight more layers cost: head, table and all that a step does once drop out. The update of a layer is in it, which the plain one
  // lacks.
  const auto step = [&](int64_t layers) {
    return must_train_on_gpu(options, log, fmt::format("layers-{}", layers),
                             {.sets = gpu_decoder(options, {.embed = kEmbed,
                                                            .layers = layers,
                                                            .heads = kHeads,
                                                            .kv_heads = kHeads,
                                                            .mlp = kMlp,
                                                            .batch = kBatch,
                                                            .length = kLength}),
                              .steps = 60})
        .step_s();
  };
  const double few = step(4), many = step(12), fused = (many - few) / 8, plain = plain_layer_seconds();
  constexpr double kWeights = 4.0 * kEmbed * kEmbed + 3.0 * kEmbed * kMlp, kTokens = static_cast<double>(kBatch * kLength);
  const double flops = 6 * kWeights * kTokens + 3 * 2.0 * kTokens * kLength * kEmbed;  // attention over half of all pairs
  log.info(
      "a layer, forward and backward: {:.2f} ms with its update, {:.0f} TFLOP/s of the model ({:.0f} % of 989, the card's name plate); "
      "plain {:.2f} ms",
      fused * 1e3, flops / fused * 1e-12, flops / fused * 1e-12 / 9.89, plain * 1e3);
  findings.at_least("7. a layer of 2,048 x 8,192 on 8,192 tokens, forward and backward: unfused / fused", 1, plain / fused, 1.1);
  findings.skip("7. peak memory of the vocabulary-parallel loss", "optional in the sheet");
}

}  // namespace cairn::study
