#include "model/losses/consistency.h"

#include <limits>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

// Rows of logits in fp32 or more, and their log-sum-exp over the whole vocabulary.
struct LogRows {
  at::Tensor rows;  // log-probabilities [rows, local vocab]
};

LogRows log_rows(const at::Tensor& logits, comm::Group* tp) {
  const auto precise = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)}).to(precise);
  if (!tp) return {at::log_softmax(rows, -1)};
  const at::Tensor lse =
      rows.size(1) > 0 ? at::logsumexp(rows, {1}) : at::full({rows.size(0)}, -std::numeric_limits<double>::infinity(), rows.options());
  const at::Tensor all = at::empty({tp->size(), rows.size(0)}, rows.options());
  tp->all_gather(all, lse, {comm::Purpose::loss, "parts of the vocabulary"}).wait();
  return {rows - all.logsumexp(0).unsqueeze(1)};
}

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
      const LogRows log_p = log_rows(made.tensor, tp), log_q = log_rows(outputs.get(kOtherLogits), tp);
      const at::Tensor q = log_q.rows.exp(), counts = row_weights(batch, q);
      at::Tensor by_row = (q * (log_q.rows - log_p.rows)).sum(1);
      if (tp) tp->all_reduce(by_row, comm::Reduce::sum, {comm::Purpose::loss, "divergence"}).wait();
      divergence = (by_row * counts).sum(at::kDouble);
      if (gradients)
        gradient = (log_p.rows.exp() - q).mul_((counts * (weight * weights_.agreement)).unsqueeze(1)).to(made.tensor.scalar_type());
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
  // What the loss of each row counts: 0 without a target, else the weight of its sample.
  static at::Tensor row_weights(const mesh::Batch& batch, const at::Tensor& like) {
    at::Tensor counts = at::ones({like.size(0)}, like.options());
    if (const auto targets = batch.fields.find("targets"); targets != batch.fields.end())
      counts = targets->second.tensor.reshape({-1}).ne(kernels::kIgnoreTarget).to(like.scalar_type());
    if (!batch.weights.defined()) return counts;
    return (counts.view({batch.samples(), -1}) * batch.weights.to(like.scalar_type()).view({-1, 1})).view({-1});
  }

  std::shared_ptr<const Objective> own_;
  ConsistencyWeights weights_;
};

}  // namespace

std::unique_ptr<Objective> make_consistency(std::shared_ptr<const Objective> objective, ConsistencyWeights weights) {
  return std::make_unique<Consistency>(std::move(objective), weights);
}

}  // namespace cairn::model
