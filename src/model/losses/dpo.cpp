#include "model/losses/dpo.h"

#include <ATen/ops/log_sigmoid.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

// The sum of the token losses of each answer: double [answers]. Ranks along cp have some positions of every answer each.
at::Tensor by_answer(const RowLosses& losses, const at::Tensor& targets, const mesh::Axes& axes) {
  at::Tensor sums = losses.loss.view(targets.sizes()).sum(1, /*keepdim=*/false, at::kDouble);
  if (comm::Group* cp = axes.find("cp")) cp->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::loss, "answers"}).wait();
  return sums;
}

// Ranks along cp compute the same loss of every answer: each counts this share of it.
double share_of(const mesh::Axes& axes) {
  const comm::Group* cp = axes.find("cp");
  return cp ? 1.0 / cp->size() : 1.0;
}

class AnswerLosses final : public Objective {
 public:
  Separates separates() const override { return Separates::samples; }
  bool reads_chunks() const override { return true; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double /*weight*/, const mesh::Axes& axes) const override {
    CAIRN_CHECK(!gradients, "answer losses of {} samples have no gradient", batch.samples());
    const at::Tensor& targets = batch.field("targets");
    const RowLosses losses = row_losses(outputs.value("logits"), targets.reshape({-1}), axes);
    const at::Tensor answers = by_answer(losses, targets, axes);
    return {.sum = answers.sum(), .count = at::full({}, batch.samples(), losses.targets.options()), .per_sample = answers};
  }
};

class Dpo final : public Objective {
 public:
  explicit Dpo(const DpoOptions& options) : beta_(options.beta), smoothing_(options.label_smoothing) {}

  Separates separates() const override { return Separates::samples; }
  bool reads_chunks() const override { return true; }
  std::vector<std::string> measures() const override { return {"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"}; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const override {
    const at::Tensor& targets = batch.field("targets");  // [2 pairs, length]
    const Value& logits = outputs.value("logits");
    const RowLosses losses = row_losses(logits, targets.reshape({-1}), axes);
    const int64_t pairs = batch.samples();
    const at::Tensor rewards = -beta_ * (by_answer(losses, targets, axes) - batch.field("reference")).view({pairs, 2});
    const at::Tensor margin = rewards.select(1, 0) - rewards.select(1, 1);
    at::Tensor per_pair = -(1 - smoothing_) * at::log_sigmoid(margin) - smoothing_ * at::log_sigmoid(-margin);
    if (batch.weights.defined()) per_pair = per_pair * batch.weights.to(at::kDouble);
    if (gradients) {
      at::Tensor slope = smoothing_ * at::sigmoid(margin) - (1 - smoothing_) * at::sigmoid(-margin);  // of the loss along the margin
      if (batch.weights.defined()) slope = slope * batch.weights.to(at::kDouble);
      // d margin / d cross entropy: -beta for the chosen answer, +beta for the rejected one.
      const at::Tensor by_row = at::stack({-slope, slope}, 1).mul_(beta_ * weight).view({2 * pairs, 1});
      const at::Tensor scale = by_row.to(losses.lse.scalar_type()).expand({2 * pairs, targets.size(1)}).reshape({-1});
      add_row_gradients(*gradients, logits, losses, scale);
    }
    const at::Tensor measured = at::stack({rewards.select(1, 0), rewards.select(1, 1), margin, margin.gt(0).to(at::kDouble)});
    const double share = share_of(axes);
    return {.sum = per_pair.sum() * share,
            .count = at::full({}, static_cast<double>(pairs) * share, losses.targets.options().dtype(at::kDouble)),
            .per_sample = per_pair,
            .per_sample_count = at::ones({pairs}, losses.targets.options()),
            .measures = measured.sum(1) * share};
  }

 private:
  double beta_, smoothing_;
};

}  // namespace

std::unique_ptr<Objective> make_dpo(const DpoOptions& options) { return std::make_unique<Dpo>(options); }

std::unique_ptr<Objective> make_answer_losses() { return std::make_unique<AnswerLosses>(); }

}  // namespace cairn::model
