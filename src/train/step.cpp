#include "train/step.h"

#include <utility>

#include "base/trace.h"
#include "data/shard.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"
#include "optim/clip.h"
#include "parallel/pass.h"
#include "train/engine.h"

namespace cairn::train {
namespace {

class OneUpdate final : public Step {
 public:
  explicit OneUpdate(Passes passes) : passes_(std::move(passes)) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override { return passes_(pass_over(engine, batch)); }

  StepOutput run(Engine& engine, const StepInput& input) override {
    sync::StepFacts facts{.step = input.step, .tokens = input.tokens, .learning_rate = input.learning_rate};
    const auto parts = data::micro_batches(input.batch.samples(), engine.micro_batch);
    at::Tensor loss_sum, measures;
    engine.gradients->begin(static_cast<int64_t>(parts.size()), [&](int64_t index) { engine.sync->gradient_ready(index); });
    for (const data::Share& part : parts) {
      const mesh::Batch batch = mesh::slice(input.batch, part.first, part.first + part.count);
      parallel::Pass pass = pass_over(engine, batch);
      pass.into = sink_of(engine);
      // Divided by the global count, so that gradients of micro-batches and ranks simply add up.
      pass.weight = 1.0 / static_cast<double>(input.counted);
      pass.random = engine.random.for_index(static_cast<uint64_t>(input.step));
      pass.trace = engine.trace;
      pass.memory = engine.memory;
      const model::Losses losses = passes_(pass);
      loss_sum = loss_sum.defined() ? loss_sum + losses.sum : losses.sum;
      measures = measures.defined() ? measures + losses.measures : losses.measures;
    }
    engine.gradients->finish();
    {
      const auto traced = engine.trace->span("wait for gradients", "sync");
      engine.sync->after_backward(facts).wait();
    }
    const optim::Clip clip = optim::clip(kernels::sum_of_squares(engine.gradients->flat()), 1.0, engine.clip_norm);
    if (!loss_sum.defined()) loss_sum = at::zeros({}, clip.norm.options());  // a rank without samples
    facts.skipped = input.approve && !input.approve(loss_sum, clip.norm);
    if (!facts.skipped) update(engine, input, clip.factor);
    engine.sync->after_step(facts).wait();
    return {.loss_sum = loss_sum, .gradient_norm = clip.norm, .measures = measures, .skipped = facts.skipped};
  }

 private:
  static void update(Engine& engine, const StepInput& input, const at::Tensor& factor) {
    const auto traced = engine.trace->span("update", "optimizer");
    for (int64_t piece = 0; piece < engine.pieces; ++piece)
      engine.optimizer->update(piece, {.step = input.update, .learning_rate = input.learning_rate, .gradient_factor = &factor});
  }

  Passes passes_;
};

}  // namespace

std::unique_ptr<Step> make_step(Passes passes) { return std::make_unique<OneUpdate>(std::move(passes)); }

}  // namespace cairn::train
