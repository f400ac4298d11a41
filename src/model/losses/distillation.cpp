// d loss / d logits = t (softmax(logits / t) - q)
#include "model/losses/distillation.h"

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "model/losses/log_rows.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

class Distillation final : public Objective {
 public:
  Distillation(double temperature, Separates over) : temperature_(temperature), over_(over) {}

  Separates separates() const override { return over_; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const override {
    const Value& made = outputs.value("logits");
    CAIRN_CHECK(!made.chunked_logits, "chunked logits of a distilled pass over {} samples", batch.samples());
    comm::Group* tp = is_vocab_parallel(made, axes) ? axes.find("tp") : nullptr;
    const at::Tensor log_p = log_probabilities(made.tensor, tp, temperature_);
    const at::Tensor q = log_probabilities(outputs.get(kTeacherLogits), tp, temperature_).exp();
    const at::Tensor counts = row_weights(batch, q);
    const double squared = temperature_ * temperature_;
    at::Tensor by_row = (q * log_p).sum(1) * -squared;
    if (tp) tp->all_reduce(by_row, comm::Reduce::sum, {comm::Purpose::loss, "distillation"}).wait();
    if (gradients) {
      const at::Tensor gradient = (log_p.exp() - q).mul_((counts * (weight * temperature_)).unsqueeze(1));
      gradients->add("logits", gradient.to(made.tensor.scalar_type()).view(made.tensor.sizes()));
    }
    const at::Tensor losses = (by_row * counts).view({batch.samples(), -1});
    return {.sum = losses.sum(at::kDouble),
            .count = counts.ne(0).sum(),
            .per_sample = losses.sum(1),
            .per_sample_count = counts.ne(0).view({batch.samples(), -1}).sum(1)};
  }

 private:
  double temperature_;
  Separates over_;
};

}  // namespace

std::unique_ptr<Objective> make_distillation(double temperature, Objective::Separates over) {
  return std::make_unique<Distillation>(temperature, over);
}

}  // namespace cairn::model
