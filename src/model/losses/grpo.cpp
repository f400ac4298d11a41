// The loss is a sum over rows of logits, so chunked logits need one pass: with u = log p of a row, l(u) as in grpo.h and its slope
//   dl/du = -r A where min takes the first term, else 0;  + beta (1 - p_ref / p)
// and a row's cross entropy is -u.
#include "model/losses/grpo.h"

#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

class Grpo final : public Objective {
 public:
  explicit Grpo(const GrpoOptions& options) : o_(options) {
    CAIRN_CHECK(o_.normalisation != GrpoOptions::Normalisation::length || o_.length > 0, "a full sequence of {} tokens", o_.length);
  }

  // What the trainer counts to divide by.
  Separates separates() const override {
    return o_.normalisation == GrpoOptions::Normalisation::tokens ? Separates::tokens : Separates::samples;
  }
  bool reads_chunks() const override { return true; }
  std::vector<std::string> measures() const override { return {"clip_fraction", "approximate_kl"}; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const override {
    const at::Tensor& shaped = batch.field("targets");  // [samples, length]
    const int64_t samples = batch.samples();
    const at::Tensor targets = shaped.reshape({-1}), is_target = targets.ne(kernels::kIgnoreTarget).to(at::kDouble);
    const at::Tensor row_weight = row_weights(batch, is_target.view(shaped.sizes()), axes).reshape({-1});
    const at::Tensor advantage = batch.field("advantages").to(at::kDouble).view({-1, 1}).expand(shaped.sizes()).reshape({-1});
    const at::Tensor old = column(batch, "old_log_probs"), reference = o_.beta > 0 ? column(batch, "reference_log_probs") : at::Tensor();
    CAIRN_CHECK(o_.beta == 0 || reference.defined(), "a KL divergence from reference log-probabilities that the batch does not have");
    const auto rows = [&](const at::Tensor& by_row, int64_t begin, int64_t count) {
      return by_row.defined() ? by_row.narrow(0, begin, count) : by_row;
    };
    at::Tensor loss = at::empty_like(row_weight), ratio_rows = at::empty_like(row_weight);
    const auto slope = [&](const at::Tensor& cross_entropy, int64_t begin) {
      const int64_t n = cross_entropy.numel();
      const at::Tensor u = -cross_entropy.to(at::kDouble), a = rows(advantage, begin, n), w = rows(row_weight, begin, n);
      const at::Tensor ratio = old.defined() ? (u - rows(old, begin, n)).exp() : at::ones_like(u);
      const at::Tensor free = ratio * a, clipped = ratio.clamp(1 - o_.clip_low, 1 + o_.clip_high) * a;
      at::Tensor l = -at::minimum(free, clipped), du = -free * free.le(clipped);
      if (reference.defined()) {
        const at::Tensor apart = rows(reference, begin, n) - u, odds = apart.exp();
        l = l + o_.beta * (odds - apart - 1);
        du = du + o_.beta * (1 - odds);
      }
      // Rows without a target may hold anything: their weight is 0, and 0 times infinity is not.
      const at::Tensor counts = rows(is_target, begin, n).gt(0);
      loss.narrow(0, begin, n).copy_(at::where(counts, l * w, at::zeros_like(l)));
      ratio_rows.narrow(0, begin, n).copy_(at::where(counts, ratio, at::ones_like(ratio)));
      return at::where(counts, -du * w * weight, at::zeros_like(du));
    };
    if (gradients) {
      row_losses_and_gradients(*gradients, outputs.value("logits"), targets, axes, slope, o_.temperature);
    } else {
      slope(row_losses(outputs.value("logits"), targets, axes, o_.temperature).loss, 0);
    }
    const at::Tensor per_sample = loss.view({samples, -1}).sum(1), found = is_target.view({samples, -1}).sum(1);
    const at::Tensor outside = ratio_rows.lt(1 - o_.clip_low).logical_or_(ratio_rows.gt(1 + o_.clip_high)).to(at::kDouble);
    // Measures are divided by the count as the loss is: by target, or by sequence.
    const bool by_tokens = o_.normalisation == GrpoOptions::Normalisation::tokens;
    const at::Tensor by_target =
        by_tokens ? is_target : is_target / all_targets(is_target.view({samples, -1}), axes).expand(shaped.sizes()).reshape({-1});
    return {.sum = per_sample.sum(),
            .count = by_tokens ? found.sum() : at::full({}, static_cast<double>(samples) * share_of(axes), found.options()),
            .per_sample = per_sample,
            .per_sample_count = by_tokens ? found : at::ones({samples}, found.options()),
            .measures = at::stack({(outside * by_target).sum(), ((ratio_rows - 1 - ratio_rows.log()) * by_target).sum()})};
  }

 private:
  // Ranks along cp have some positions of every sequence each; a sequence counts this share on each.
  static double share_of(const mesh::Axes& axes) {
    const comm::Group* cp = axes.find("cp");
    return cp ? 1.0 / cp->size() : 1.0;
  }

  static at::Tensor column(const mesh::Batch& batch, const std::string& name) {
    const auto found = batch.fields.find(name);
    return found == batch.fields.end() ? at::Tensor() : found->second.tensor.to(at::kDouble).reshape({-1});
  }

  // The targets of each sequence on all ranks along cp, at least 1: [samples, 1].
  static at::Tensor all_targets(const at::Tensor& is_target, const mesh::Axes& axes) {
    at::Tensor all = is_target.sum(1, /*keepdim=*/true);
    if (comm::Group* cp = axes.find("cp")) cp->all_reduce(all, comm::Reduce::sum, {comm::Purpose::loss, "targets"}).wait();
    return all.clamp_min_(1);
  }

  // What each target's objective is multiplied by, before the division by the count of the step.
  at::Tensor row_weights(const mesh::Batch& batch, const at::Tensor& is_target, const mesh::Axes& axes) const {
    at::Tensor weights = is_target;
    if (o_.normalisation == GrpoOptions::Normalisation::sequence) weights = weights / all_targets(is_target, axes);
    if (o_.normalisation == GrpoOptions::Normalisation::length) weights = weights / static_cast<double>(o_.length);
    if (batch.weights.defined()) weights = weights * batch.weights.to(at::kDouble).view({-1, 1});
    return weights.contiguous();
  }

  GrpoOptions o_;
};

}  // namespace

std::unique_ptr<Objective> make_grpo(const GrpoOptions& options) { return std::make_unique<Grpo>(options); }

}  // namespace cairn::model
