// PERP: what must hold exactly, on single weights and single layers.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/decoder/masked_weight.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/options.h"
#include "proofs/perp_parts.h"
#include "study/prune/criteria.h"

namespace cairn::study {
namespace {

// A model of one weight.
class OneWeight final : public model::Model {
 public:
  model::Buffers make_buffers(const at::TensorOptions&) const override { return {}; }
};

at::Tensor normal_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  const at::Tensor values = at::empty({rows, columns});
  base::Random(seed).fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values;
}

// The loss that a form of a masked weight reaches on y = x w^T.
double regression_loss(model::SparseForm form, uint64_t seed) {
  constexpr int64_t kIn = 12, kOut = 10, kRows = 256, kSteps = 3000;
  const at::Tensor x = normal_matrix(kRows, kIn, seed + 1), y = at::matmul(x, normal_matrix(kIn, kOut, seed + 2));
  const at::Tensor kept = normal_matrix(kOut, kIn, seed + 3).gt(0);
  OneWeight model;
  const model::Parameter dense{.name = "w.weight", .shape = {kOut, kIn}, .axes = {"out", "in"}, .deviation = 0.3};
  const mesh::ParamId weight = model.add(dense);
  const auto rule =
      model::make_sparse_rule({.form = form, .rank = std::min(kIn, kOut), .alpha = 2.0 * std::min(kIn, kOut), .weights = {dense.name}});
  const auto made = rule->make(model, dense, weight);
  const mesh::FlatLayout layout = model.layout();
  const at::Tensor flat = at::empty({layout.elements});
  model::initialize_parameters(model, flat, base::Random(seed));
  model::Buffers buffers{{dense.name + model::kMaskSuffix, model::pack_mask(kept)}};
  mesh::FlatGradients gradients(layout, at::zeros({layout.elements}), model.uses());
  std::vector<optim::ParameterPiece> pieces;
  const mesh::NamedTensors values = layout.views(flat), sums = layout.views(gradients.flat());
  for (size_t i = form == model::SparseForm::masked ? 0 : 1; i < values.size(); ++i)
    pieces.push_back({.name = values[i].name, .parameter = values[i].tensor, .gradient = sums[i].tensor});
  const auto count = static_cast<int64_t>(pieces.size());
  const auto optimizer = optim::make_optimizer({.weight_decay = 0}, std::move(pieces));
  const optim::LrSchedule schedule{.shape = "linear", .highest = 0.02, .warmup = 0.05, .min_lr_ratio = 0};
  const model::FlatWeights weights(layout, flat);
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  double loss = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const at::Tensor out = at::empty_like(y);
    made->product(out, x, call, nullptr);
    const at::Tensor error = out - y;
    loss = error.square().mean().item<double>();
    gradients.begin(1, nullptr);
    made->weight_gradient(gradients, x, error * (2.0 / static_cast<double>(error.numel())), call);
    gradients.finish();
    optimizer->update_several(0, count, {.step = step, .learning_rate = schedule.learning_rate(static_cast<double>(step) / kSteps)});
  }
  return loss;
}

// How far new factors of ScaleLoRA change the weights that a layer multiplies by, of the largest.
double change_by_new_factors(const fs::path& pruned) {
  const OpenedModel opened = open_model(pruned);
  model::SparseOptions options{.form = model::SparseForm::scale_lora, .rank = kPerpRank, .weights = {}};
  for (const auto& [name, kept] : opened.kept) options.weights.push_back(name);
  const auto model = model::make_decoder(opened.shape, {}, model::make_sparse_rule(options));
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements});
  model::initialize_parameters(*model, flat, base::Random(1));
  for (const mesh::NamedTensor& one : layout.views(flat))
    if (const auto found = opened.tensors.find(one.name); found != opened.tensors.end()) one.tensor.copy_(found->second);
  model::Buffers buffers = model->make_buffers(at::kFloat);
  for (const auto& [name, kept] : opened.kept) buffers[name + model::kMaskSuffix] = model::pack_mask(kept);
  const model::FlatWeights weights(layout, flat);
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  double most = 0;
  for (const model::WeightForm* form : model::weight_forms(*model)) {
    const at::Tensor& stored = opened.tensors.at(form->dense_parameter().name);
    most = std::max(most, ((form->dense(call) - stored).abs().max() / stored.abs().max()).item<double>());
  }
  return most;
}

// Layers of 64 outputs and 64 correlated inputs.
int64_t draws_that_sparsegpt_wins(uint64_t seed) {
  constexpr int64_t kWidth = 64, kTokens = 256;
  int64_t wins = 0;
  for (uint64_t draw = 0; draw < 50; ++draw) {
    const uint64_t key = 4 * (1000 * seed + draw);
    const at::Tensor w = normal_matrix(kWidth, kWidth, key), mix = normal_matrix(kWidth, kWidth, key + 1) * 0.4;
    const at::Tensor x = at::matmul(normal_matrix(kTokens, kWidth, key + 2), mix) + normal_matrix(kTokens, kWidth, key + 3);
    const at::Tensor y = at::matmul(x, w.t()), repaired = w.clone();
    prune_sparsegpt(repaired, at::mm(x.t(), x) * (2.0 / static_cast<double>(kTokens)), {.sparsity = 0.5});
    const at::Tensor plain = w.masked_fill(keep_highest(magnitude_scores(w), {.sparsity = 0.5}).logical_not(), 0);
    const auto error = [&](const at::Tensor& other) { return (at::matmul(x, other.t()) - y).square().sum().item<double>(); };
    wins += error(repaired) < error(plain);
  }
  return wins;
}

}  // namespace

void prove_perp_exactly(const ProofOptions& options, const PruneTrials& trials, const fs::path& dense, Findings& findings) {
  findings.at_most("3. new factors of ScaleLoRA: largest relative change of a weight", 0,
                   change_by_new_factors(trials.scratch() / "scale_lora-50" / "pruned"), 1e-6);
  const double full = regression_loss(model::SparseForm::masked, options.seed);
  findings.at_most("3. MaskLoRA of full rank on a regression: relative difference of its loss to that of all weights", full,
                   std::abs(regression_loss(model::SparseForm::mask_lora, options.seed) - full) / full, 0.01);
  const OpenedModel pattern = open_model(trials.prune("two-of-four", dense, {"prune.pattern=2:4", "prune.recover.mode=none"}).model);
  int64_t wrong = 0;
  for (const auto& [name, kept] : pattern.kept)  // stored [in, out]
    wrong += kept.t().reshape({-1, 4}).sum(1).ne(2).sum().item<int64_t>();
  findings.at_most("3. 2:4: groups of four inputs without exactly two zeros", 0, static_cast<double>(wrong), 0);
  findings.at_least("3. draws of 50 in which SparseGPT has a lower output error than magnitude", 50,
                    static_cast<double>(draws_that_sparsegpt_wins(options.seed)), 50);
}

}  // namespace cairn::study
