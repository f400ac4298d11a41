#include "model/preference.h"

#include <ATen/ops/log_sigmoid.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::model {
namespace {

// Cross entropies of all rows against their targets, and what a gradient needs of them.
struct RowLosses {
  at::Tensor rows, targets, lse;
  at::Tensor by_answer;  // double [answers]: summed over the tokens of each
};

RowLosses row_losses(const at::Tensor& logits, const mesh::Batch& batch) {
  const at::Tensor rows = logits.view({-1, logits.size(-1)}), targets = batch.field("targets").reshape({-1});
  const auto precise = rows.options().dtype(rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor loss = at::empty({rows.size(0)}, precise), lse = at::empty({rows.size(0)}, precise);
  kernels::cross_entropy(loss, lse, rows, targets);
  return {rows, targets, lse, loss.view({logits.size(0), -1}).sum(1, /*keepdim=*/false, at::kDouble)};
}

class AnswerLosses final : public Objective {
 public:
  Separates separates() const override { return Separates::samples; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double /*weight*/) const override {
    CAIRN_CHECK(!gradients, "the losses of {} answers have no gradient here", batch.samples());
    const RowLosses losses = row_losses(outputs.get("logits"), batch);
    return {
        .sum = losses.by_answer.sum(), .count = at::full({}, batch.samples(), losses.targets.options()), .per_sample = losses.by_answer};
  }
};

class Preference final : public Objective {
 public:
  explicit Preference(const PreferenceOptions& options) : beta_(options.beta), smoothing_(options.label_smoothing) {}

  Separates separates() const override { return Separates::samples; }
  std::vector<std::string> measures() const override { return {"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"}; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight) const override {
    const at::Tensor logits = outputs.get("logits");
    const RowLosses losses = row_losses(logits, batch);
    const int64_t pairs = batch.samples();
    const at::Tensor rewards = -beta_ * (losses.by_answer - batch.field("reference")).view({pairs, 2});
    const at::Tensor margin = rewards.select(1, 0) - rewards.select(1, 1);
    at::Tensor per_pair = -(1 - smoothing_) * at::log_sigmoid(margin) - smoothing_ * at::log_sigmoid(-margin);
    if (batch.weights.defined()) per_pair = per_pair * batch.weights.to(at::kDouble);
    if (gradients) {
      at::Tensor slope = smoothing_ * at::sigmoid(margin) - (1 - smoothing_) * at::sigmoid(-margin);  // of the loss along the margin
      if (batch.weights.defined()) slope = slope * batch.weights.to(at::kDouble);
      // The margin falls by beta with each unit of cross entropy of the chosen answer, and rises with the rejected one's.
      const at::Tensor by_row = at::stack({-slope, slope}, 1).mul_(beta_ * weight).view({2 * pairs, 1});
      const at::Tensor scale = by_row.to(losses.lse.scalar_type()).expand({2 * pairs, logits.size(1)}).reshape({-1});
      kernels::cross_entropy_backward(losses.rows, losses.lse, losses.targets, scale);
      gradients->add("logits", logits);
    }
    const at::Tensor measured = at::stack({rewards.select(1, 0), rewards.select(1, 1), margin, margin.gt(0).to(at::kDouble)});
    return {.sum = per_pair.sum(),
            .count = at::full({}, pairs, losses.targets.options()),
            .per_sample = per_pair,
            .per_sample_count = at::ones({pairs}, losses.targets.options()),
            .measures = measured.sum(1)};
  }

 private:
  double beta_, smoothing_;
};

}  // namespace

std::unique_ptr<Objective> make_preference(const PreferenceOptions& options) { return std::make_unique<Preference>(options); }

std::unique_ptr<Objective> make_answer_losses() { return std::make_unique<AnswerLosses>(); }

}  // namespace cairn::model
