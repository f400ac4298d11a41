#include "model/losses/consistency.h"

#include <limits>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/losses/log_rows.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

class Consistency final : public Objective {
 public:
  Consistency(std::shared_ptr<const Objective> own, ConsistencyWeights weights) : own_(std::move(own)), weights_(weights) {}

  Separates separates() const override { return own_->separates(); }
  std::vector<std::string> measures() const override {
    std::vector<std::string> names = own_->measures();
    names.emplace_back("consistency");
    return names;
  }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const override {
    at::Tensor divergence, gradient;  // before the gradient of the own loss takes the place of the logits
    if (outputs.has(kOtherLogits)) {
      const Value& made = outputs.value("logits");
      CAIRN_CHECK(!made.chunked_logits, "chunked logits of two passes over {} samples", batch.samples());
      comm::Group* tp = is_vocab_parallel(made, axes) ? axes.find("tp") : nullptr;
      const at::Tensor log_p = log_probabilities(made.tensor, tp), log_q = log_probabilities(outputs.get(kOtherLogits), tp);
      const at::Tensor q = log_q.exp(), counts = row_weights(batch, q);
      at::Tensor by_row = (q * (log_q - log_p)).sum(1);
      if (tp) tp->all_reduce(by_row, comm::Reduce::sum, {comm::Purpose::loss, "divergence"}).wait();
      divergence = (by_row * counts).sum(at::kDouble);
      if (gradients)
        gradient = (log_p.exp() - q).mul_((counts * (weight * weights_.agreement)).unsqueeze(1)).to(made.tensor.scalar_type());
    }
    const at::IntArrayRef sizes = outputs.value("logits").tensor.sizes();
    if (gradient.defined()) gradient = gradient.view(sizes);
    Losses losses = own_->evaluate(outputs, batch, gradients, weight * weights_.own, axes);
    if (gradient.defined()) gradients->add("logits", gradient);
    const auto options = losses.sum.options().dtype(at::kDouble);
    const at::Tensor measured =
        divergence.defined() ? divergence.view({1}) : at::full({1}, std::numeric_limits<double>::quiet_NaN(), options);
    losses.measures = losses.measures.defined() ? at::cat({losses.measures, measured}) : measured;
    return losses;
  }

 private:
  std::shared_ptr<const Objective> own_;
  ConsistencyWeights weights_;
};

}  // namespace

std::unique_ptr<Objective> make_consistency(std::shared_ptr<const Objective> objective, ConsistencyWeights weights) {
  return std::make_unique<Consistency>(std::move(objective), weights);
}

}  // namespace cairn::model
