// Softmax cross entropy as a training objective, in three forms:
//
//   whole            loss and gradient in one pass over the logits; the gradient overwrites them
//   vocabulary       logits are sharded along tp; ranks exchange one pair of numbers per row (losses/row_losses.h)
//   parallel
//   chunked          the head computes the logits of a chunk of rows, the loss turns them into their gradient, the head computes the input
//                    and weight gradients of the chunk at once, and the next chunk reuses the memory. So [tokens, vocab] never exists.
//                    (train.loss_chunks; decoder/embedding_head_blocks.cpp has the other half, ChunkedLogits the protocol.)
//
// In fp8 the head quantizes the gradient of the logits anyway. Then it is left out here: DeferredLogitsGradient tells the head how to make
// the fp8 gradient straight from the logits.
#include "model/objective.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/losses/row_losses.h"

namespace cairn::model {
namespace {

// Cross entropy of every row of "logits" and its target. The gradient overwrites the logits. Of samples, accuracy is measured too.
class CrossEntropy final : public Objective {
 public:
  CrossEntropy(std::string field, Separates over) : field_(std::move(field)), over_(over) {}

  Separates separates() const override { return over_; }
  std::vector<std::string> measures() const override {
    return over_ == Separates::samples ? std::vector<std::string>{"accuracy"} : std::vector<std::string>{};
  }
  bool reads_chunks() const override { return true; }

  Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const override {
    const Value& made = outputs.value("logits");
    const std::shared_ptr<ChunkedLogits> chunks = made.chunked_logits;
    const at::Tensor targets = batch.field(field_).reshape({-1});
    const at::TensorOptions options = chunks ? chunks->options() : made.tensor.options();
    const auto precise = options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    at::Tensor loss;
    const int64_t samples = batch.samples();
    const at::Tensor is_target = targets.ne(kernels::kIgnoreTarget);
    at::Tensor right;  // before the gradient takes the place of the logits
    if (over_ == Separates::samples) right = made.tensor.argmax(-1).eq(targets).sum().to(at::kDouble).view({1});
    at::Tensor by_sample_weight;  // [samples, 1], undefined: all 1
    if (batch.weights.defined()) by_sample_weight = batch.weights.to(precise).view({samples, 1});
    if (gradients) {
      at::Tensor scale = at::full({1}, weight, precise);
      if (by_sample_weight.defined()) scale = (by_sample_weight * weight).expand({samples, targets.numel() / samples}).reshape({-1});
      // |softmax - onehot| <= 1, so a common weight bounds the gradient. Its bits are the amax: non-negative floats order like integers.
      const bool known = scale.numel() == 1 && weight >= 0 && precise.dtype() == at::kFloat;
      const at::Tensor amax = known ? scale.view(at::kInt) : at::Tensor();
      if (is_vocab_parallel(made, axes)) {
        loss = row_losses_and_gradients(*gradients, made, targets, axes, [&](const at::Tensor& of_rows, int64_t begin) {
          return scale.numel() == 1 ? scale : scale.narrow(0, begin, of_rows.numel());
        });
      } else if (chunks) {
        loss = losses_of(*chunks, targets, scale, amax);
        gradients->add("logits", Value{.chunked_logits = chunks});
      } else if (made.defers_gradient && known) {
        const RowLosses found = row_losses(made, targets, axes);
        loss = found.loss;
        gradients->add(
            "logits",
            Value{.tensor = made.tensor, .deferred_gradient = DeferredLogitsGradient{found.lse, found.targets, scale}, .amax = amax});
      } else {
        const at::Tensor rows = made.tensor.view({-1, made.tensor.size(-1)});
        loss = at::empty({rows.size(0)}, precise);
        kernels::cross_entropy_and_gradient(loss, at::empty_like(loss), rows, targets, scale);
        gradients->add("logits", Value{.tensor = made.tensor, .amax = amax});
      }
    } else {
      loss = row_losses(made, targets, axes).loss;
    }
    const at::Tensor per_sample = loss.view({samples, -1}).sum(1);
    const at::Tensor per_sample_count = is_target.view({samples, -1}).sum(1);
    const at::Tensor weighted = by_sample_weight.defined() ? per_sample * by_sample_weight.view({samples}) : per_sample;
    return {.sum = weighted.sum(at::kDouble),
            .count = per_sample_count.sum(),
            .per_sample = per_sample,
            .per_sample_count = per_sample_count,
            .measures = right};
  }

 private:
  // Chunk by chunk. Each chunk goes back as its gradient, or as logits with the recipe for its gradient.
  static at::Tensor losses_of(ChunkedLogits& parts, const at::Tensor& targets, const at::Tensor& scale, const at::Tensor& amax) {
    const at::Tensor loss = at::empty({targets.numel()}, scale.options());
    for (int64_t part = 0; part < parts.chunks(); ++part) {
      const auto [begin, count, needed] = parts.rows(part);
      const at::Tensor of_part = loss.narrow(0, begin, count);
      if (!needed) {
        of_part.zero_();
        continue;
      }
      const at::Tensor logits = parts.compute(part);
      const DeferredLogitsGradient how{.lse = at::empty_like(of_part),
                                       .targets = targets.narrow(0, begin, count),
                                       .scale = scale.numel() == 1 ? scale : scale.narrow(0, begin, count)};
      const bool later = parts.defers_gradient() && amax.defined();
      if (later)
        kernels::cross_entropy(of_part, how.lse, logits, how.targets);
      else
        kernels::cross_entropy_and_gradient(of_part, how.lse, logits, how.targets, how.scale);
      parts.accept_gradient(part, amax, later ? &how : nullptr);
    }
    return loss;
  }

  std::string field_;
  Separates over_;
};

}  // namespace

std::unique_ptr<Objective> make_next_token() { return std::make_unique<CrossEntropy>("targets", Objective::Separates::tokens); }
std::unique_ptr<Objective> make_classification() { return std::make_unique<CrossEntropy>("labels", Objective::Separates::samples); }

}  // namespace cairn::model
