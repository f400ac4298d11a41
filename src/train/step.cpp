#include "train/step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/memory_scope.h"
#include "base/trace.h"
#include "comm/group.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "optim/clip.h"
#include "parallel/pass.h"
#include "train/engine.h"
#include "train/steps/cuda_graph_step.h"
#include "train/steps/gradient_checksums.h"

namespace cairn::train {
namespace {

class OneUpdate final : public Step {
 public:
  OneUpdate(Execution execution, std::unique_ptr<CudaGraphStep> recorded, int64_t check_every)
      : execution_(std::move(execution)), cuda_graph_(std::move(recorded)), check_every_(check_every) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override {
    const parallel::Pass pass = pass_over(engine, batch);
    model::Losses losses = std::move(execution_({&pass, 1}).front());
    losses.sum = losses.sum * engine.loss_share;
    losses.count = losses.count.to(at::kDouble) * engine.loss_share;
    if (losses.measures.defined()) losses.measures = losses.measures * engine.loss_share;
    return losses;
  }

  sync::StepMetrics metrics() override {
    if (!cuda_graph_) return {};
    return {{"recorded_passes", passes_recorded_}, {"recorded_update", update_recorded_}};
  }

  StepOutput run(Engine& engine, const StepInput& input) override {
    sync::StepFacts facts{.step = input.step, .tokens = input.tokens, .learning_rate = input.learning_rate};
    const auto parts = engine.micro_batches > 0 ? data::even_micro_batches(input.batch.samples(), engine.micro_batches)
                                                : data::micro_batches(input.batch.samples(), engine.micro_batch, input.max_local_samples);
    const auto passes = std::count_if(parts.begin(), parts.end(), [](const data::BatchRange& part) { return part.count > 0; });
    std::vector<mesh::Batch> batches;
    for (const data::BatchRange& part : parts) batches.push_back(mesh::slice(input.batch, part.first, part.first + part.count));
    std::vector<parallel::Pass> all;
    for (const mesh::Batch& batch : batches) {
      parallel::Pass& pass = all.emplace_back(pass_over(engine, batch));
      pass.into = &engine.store->sink();
      // Divided by the global count, so that gradients of micro-batches and ranks simply add up.
      pass.weight = 1.0 / static_cast<double>(input.loss_denominator);
      pass.random = engine.random.for_index(static_cast<uint64_t>(input.step));
      pass.trace = engine.trace;
      pass.memory = engine.memory;
      recompute_as_planned(engine, pass, all.size() == batches.size());
    }
    parallel::GradientReducer& flow = engine.store->reducer();
    const auto begin = [&](parallel::GradientReducer::Announce announce) {
      flow.begin(passes, static_cast<int64_t>(parts.size()), std::move(announce));
    };
    std::optional<GradientChecksums> expected;
    std::vector<int64_t> ready;  // where they are expected: told on only when they are as expected
    if (is_due(input.step)) {
      begin([](int64_t) {});
      const at::Tensor loss_sum = passes_over(all)[0];
      flow.finish();
      expected.emplace(loss_sum, engine.gradient_views);
      model::commit_batch_norms(engine.buffers, /*skipped=*/true, {});
    }
    begin([&](int64_t index) { expected ? ready.push_back(index) : engine.sync->gradient_ready(index); });
    // An update that nothing on the host comes before is recorded with the passes.
    at::Tensor numbers;
    const bool recorded = cuda_graph_ && cuda_graph_->should_replay(all);
    if (recorded && !input.approve && !engine.before_update) numbers = engine.optimizer->step_scalars(facts_of(input));
    const std::vector<at::Tensor> found = recorded ? cuda_graph_->run(all, numbers, work_of(engine)) : passes_over(all);
    at::Tensor loss_sum = found[0], measures = found[1];
    {
      const auto traced = engine.trace->span("wait for gradients", "sync");
      flow.finish();
      if (expected) expected->expect_same({loss_sum, engine.gradient_views}, input.step);
      for (const int64_t index : ready) engine.sync->gradient_ready(index);
      engine.sync->after_backward(facts).wait();
    }
    if (engine.before_update) engine.before_update();
    const bool updated = numbers.defined();
    passes_recorded_ = recorded, update_recorded_ = updated;
    const optim::Clip clip = updated ? optim::Clip{.norm = found[2], .factor = {}} : clip_of(engine);
    if (!loss_sum.defined()) loss_sum = at::zeros({}, clip.norm.options());  // a rank without samples
    if (engine.loss_share != 1) loss_sum = loss_sum * engine.loss_share;
    if (engine.loss_share != 1 && measures.defined()) measures = measures * engine.loss_share;
    facts.skipped = input.approve && !input.approve(loss_sum, clip.norm);
    if (!facts.skipped && !updated) update(engine, facts_of(input), clip.factor);
    engine.sync->after_step(facts).wait();
    if (!updated) engine.store->updated();
    model::commit_batch_norms(engine.buffers, facts.skipped, [&](const at::Tensor& sums) {
      engine.step_group->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::state, "running statistics"}).wait();
    });
    return {.loss_sum = loss_sum, .gradient_norm = clip.norm, .measures = measures, .skipped = facts.skipped};
  }

 private:
  // The first step that is taken at or after each multiple: some may be left out.
  bool is_due(int64_t step) {
    if (check_every_ == 0) return false;
    const int64_t multiple = step / check_every_;
    return std::exchange(checked_, multiple) != multiple;
  }

  // The sums of losses and of what the objective measures, each undefined where there is none.
  std::vector<at::Tensor> passes_over(std::span<const parallel::Pass> all) const {
    at::Tensor loss_sum, measures;
    for (const model::Losses& losses : execution_(all)) {
      loss_sum = loss_sum.defined() ? loss_sum + losses.sum : losses.sum;
      if (losses.measures.defined()) measures = measures.defined() ? measures + losses.measures : losses.measures;
    }
    return {loss_sum, measures};
  }

  // For a recording: the passes, and with numbers the update too, after which the norm is left as well.
  CudaGraphStep::Work work_of(Engine& engine) const {
    return [this, &engine](std::span<const parallel::Pass> all, const at::Tensor& numbers) {
      std::vector<at::Tensor> found = passes_over(all);
      if (!numbers.defined()) return found;
      const optim::Clip clip = clip_of(engine);
      update(engine, {.step_scalars = &numbers}, clip.factor);
      engine.store->updated();
      found.push_back(clip.norm);
      return found;
    };
  }

  static optim::Clip clip_of(const Engine& engine) { return optim::clip(engine.store->sum_of_squares(), 1.0, engine.clip_norm); }

  static optim::UpdateFacts facts_of(const StepInput& input) { return {.step = input.update, .learning_rate = input.learning_rate}; }

  static void update(Engine& engine, optim::UpdateFacts facts, const at::Tensor& factor) {
    const auto traced = engine.trace->span("update", "optimizer");
    const base::MemoryScope purpose("update");
    facts.gradient_factor = &factor;
    engine.optimizer->update_several(0, engine.pieces, facts);
  }

  Execution execution_;
  std::unique_ptr<CudaGraphStep> cuda_graph_;               // null: steps are not recorded
  const int64_t check_every_;                               // so many steps; 0: none is checked
  int64_t checked_ = 0;                                     // at or after which multiple of that one was checked last
  bool passes_recorded_ = false, update_recorded_ = false;  // of the last step
};

}  // namespace

Execution in_turn(Passes passes) {
  return [passes = std::move(passes)](std::span<const parallel::Pass> micro_batches) {
    std::vector<model::Losses> losses;
    for (const parallel::Pass& pass : micro_batches) losses.push_back(passes(pass));
    return losses;
  };
}

std::unique_ptr<Step> make_step(Execution execution, int64_t check_every) {
  return std::make_unique<OneUpdate>(std::move(execution), nullptr, check_every);
}

std::unique_ptr<Step> make_cuda_graph_step(Execution execution, std::unique_ptr<CudaGraphStep> recorded) {
  return std::make_unique<OneUpdate>(std::move(execution), std::move(recorded), /*check_every=*/0);
}

}  // namespace cairn::train
