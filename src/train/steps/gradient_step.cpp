// One step of ordinary training, on this rank, in order:
//
//   g = sum over micro-batches of d(loss_sum / loss_denominator)/dw     accumulate_gradients: passes and reduction inside the replica
//   g = sum of g over replicas                                          Sync::gradient_ready, overlapped with backward; after_backward
//   c = min(1, optim.max_grad_norm / |g|)                               the norm is over the whole model
//   w = update(w, c g)                                                  unless `approve` refuses the numbers
//   after_step                                                          rules that synchronise parameters instead of gradients
//
// With several passes over each micro-batch (step_passes.h) the first line sums over these too, each with its weight.
// With CUDA graphs the passes, and the update where the host has no say in it, are captured once and replayed. With check_every the passes
// run twice now and then, and the gradients must be bitwise identical.
#include "train/steps/gradient_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/memory_scope.h"
#include "base/trace.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/classifier/batch_norm.h"
#include "optim/clip.h"
#include "train/accumulate_gradients.h"
#include "train/job.h"
#include "train/step_passes.h"
#include "train/steps/cuda_graph_step.h"
#include "train/steps/device_graph.h"
#include "train/steps/gradient_checksums.h"

namespace cairn::train {
namespace {

class GradientStep final : public Step {
 public:
  GradientStep(Execution execution, std::unique_ptr<CudaGraphStep> graphs, int64_t check_every)
      : execution_(std::move(execution)), graphs_(std::move(graphs)), check_every_(check_every) {}
  GradientStep(StepPasses several, parallel::Pipeline* pipeline, int64_t check_every)
      : execution_(
            [this, pipeline](std::span<const parallel::Pass> passes) { return run_passes(list_, several_.measured, passes, pipeline); }),
        check_every_(check_every),
        several_(std::move(several)) {}

  model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const override {
    const parallel::Pass pass = pass_over(engine, batch);
    model::Losses losses = std::move(execution_({&pass, 1}).front());
    losses.sum = losses.sum * engine.loss_share;
    losses.count = losses.count.to(at::kDouble) * engine.loss_share;
    if (losses.measures.defined()) losses.measures = losses.measures * engine.loss_share;
    return losses;
  }

  sync::StepMetrics metrics() override {
    sync::StepMetrics all = of_model_;
    const sync::StepMetrics own = several_.metrics ? several_.metrics()
                                  : graphs_
                                      ? sync::StepMetrics{{"recorded_passes", passes_replayed_}, {"recorded_update", update_replayed_}}
                                      : sync::StepMetrics{};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }

  StepOutput run(Engine& engine, const StepInput& input) override {
    sync::StepFacts facts{.step = input.step, .tokens = input.tokens, .learning_rate = input.learning_rate};
    const double weight = 1.0 / static_cast<double>(input.loss_denominator);
    TrainingPasses all = input.plan ? planned_passes(engine, input.batch, *input.plan, weight, input.step)
                                    : training_passes(engine, input.batch, input.max_local_samples, weight, input.step);
    if (several_.list) list_passes(engine, input, all);
    Found found = gradients(engine, input, all);
    {
      const auto traced = engine.trace->span("wait for gradients", "sync");
      engine.sync->after_backward(facts).wait();
    }
    if (engine.before_update) engine.before_update();
    const optim::Clip clip = found.norm.defined() ? optim::Clip{.norm = found.norm, .factor = {}} : clip_of(engine);
    if (!found.loss_sum.defined()) found.loss_sum = at::zeros({}, clip.norm.options());  // a rank without samples
    if (engine.loss_share != 1) found.loss_sum = found.loss_sum * engine.loss_share;
    if (engine.loss_share != 1 && found.measures.defined()) found.measures = found.measures * engine.loss_share;
    facts.skipped = input.approve && !input.approve(found.loss_sum, clip.norm);
    const bool updated = found.norm.defined();
    if (!facts.skipped && several_.before_update) several_.before_update(engine, input, list_);
    if (!facts.skipped && !updated) update(engine, facts_of(input), clip.factor);
    if (!facts.skipped && engine.after_update) engine.after_update();
    engine.sync->after_step(facts).wait();
    if (!updated) engine.store->updated_by_step();
    const auto sum = [&](const at::Tensor& sums) {
      engine.step_group->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::state, "running statistics"}).wait();
    };
    model::commit_batch_norms(engine.buffers, facts.skipped, sum);
    of_model_ = engine.model->end_step(engine.buffers, facts.skipped, sum);
    StepOutput output{.loss_sum = found.loss_sum, .gradient_norm = clip.norm, .measures = found.measures, .skipped = facts.skipped};
    if (input.keeps_sample_losses) add_sample_losses(output);
    losses_.clear();
    return output;
  }

 private:
  // What the passes of a step leave. `norm` is defined where a CUDA graph has made the update too.
  struct Found {
    at::Tensor loss_sum, measures, norm;
  };

  void list_passes(const Engine& engine, const StepInput& input, TrainingPasses& all) {
    list_ = several_.list(engine, input);
    all.backward_passes = std::count_if(list_.begin(), list_.end(), [](const WeightedPass& one) { return one.gradients; });
    all.some_leave_out = several_.leave_out_layers;
  }

  // Runs the passes. Complete gradients are announced to the sync rule.
  Found gradients(Engine& engine, const StepInput& input, const TrainingPasses& all) {
    const auto run_passes = [&](std::span<const parallel::Pass> passes) {
      losses_ = execution_(passes);
      return sum_losses(losses_);
    };
    std::optional<GradientChecksums> expected;
    if (is_due(input.step)) {
      const at::Tensor loss_sum = accumulate_gradients(
          engine, all, [](int64_t) {}, run_passes)[0];
      expected.emplace(loss_sum, engine.trained.gradients);
      model::commit_batch_norms(engine.buffers, /*skipped=*/true, {});
      engine.model->end_step(engine.buffers, /*skipped=*/true, {});
    }
    at::Tensor numbers;  // the optimizer's scalars, if the update is captured with the passes: the host decides nothing in between
    passes_replayed_ = graphs_ && graphs_->should_replay(all.passes);
    if (passes_replayed_ && !input.approve && !engine.before_update) numbers = engine.optimizer->step_scalars(facts_of(input));
    update_replayed_ = numbers.defined();
    if (update_replayed_) mesh::before_writing_all(engine.trained.barrier);  // the graph updates all pieces
    std::vector<int64_t> held;  // announced only once the second run has been compared with the first
    const auto ready = [&](int64_t piece) { expected ? held.push_back(piece) : engine.sync->gradient_ready(piece); };
    std::vector<at::Tensor> found =
        passes_replayed_
            ? accumulate_gradients(engine, all, ready,
                                   [&](std::span<const parallel::Pass> passes) { return graphs_->run(passes, numbers, work_of(engine)); })
            : accumulate_gradients(engine, all, ready, run_passes);
    if (expected) expected->expect_same({found[0], engine.trained.gradients}, input.step);
    for (const int64_t piece : held) engine.sync->gradient_ready(piece);
    return {found[0], found[1], update_replayed_ ? found[2] : at::Tensor()};
  }

  // Of the passes that computed losses, in the order of the samples.
  void add_sample_losses(StepOutput& output) const {
    std::vector<at::Tensor> sums, counts;
    for (const model::Losses& one : losses_) {
      if (!one.per_sample.defined()) continue;
      sums.push_back(one.per_sample);
      counts.push_back(one.per_sample_count);
    }
    if (sums.empty()) return;
    output.sample_losses = at::cat(sums);
    output.sample_counts = at::cat(counts);
  }

  // The first step at or after each multiple of check_every: some steps may be left out.
  bool is_due(int64_t step) {
    if (check_every_ == 0) return false;
    const int64_t multiple = step / check_every_;
    return std::exchange(checked_, multiple) != multiple;
  }

  // What a CUDA graph captures: the passes and, with numbers, the update, after which the norm is returned as well.
  CudaGraphStep::Work work_of(Engine& engine) const {
    return [this, &engine](std::span<const parallel::Pass> passes, const at::Tensor& numbers) {
      std::vector<at::Tensor> found = sum_losses(execution_(passes));
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
    const base::MemoryScope scope("update");
    facts.gradient_factor = &factor;
    engine.optimizer->update_several(0, static_cast<int64_t>(engine.trained.values.size()), facts);
  }

  Execution execution_;
  std::unique_ptr<CudaGraphStep> graphs_;                   // null: no CUDA graphs
  const int64_t check_every_;                               // 0: no step is checked
  StepPasses several_ = {};                                 // without a list: one pass over each micro-batch
  std::vector<WeightedPass> list_;                          // of this step
  std::vector<model::Losses> losses_;                       // of the passes of this step, where they are not captured
  int64_t checked_ = 0;                                     // the multiple of check_every that was checked last
  sync::StepMetrics of_model_;                              // of the last step
  bool passes_replayed_ = false, update_replayed_ = false;  // in the last step
};

std::unique_ptr<Step> make_gradient(const StepContext& context) {
  Engine& engine = context.job.engine;
  const TrainOptions& t = context.job.config.settings.train;
  if (t.cuda_graph)
    return make_cuda_graph_step(in_turn(parallel::execute), std::make_unique<CudaGraphStep>(engine.store->reducer(), make_cuda_graph));
  if (engine.pipeline)
    return make_step([&engine](std::span<const parallel::Pass> passes) { return engine.pipeline->run(passes); }, t.check_every);
  return make_step(in_turn(parallel::execute), t.check_every);
}

}  // namespace

StepMethod gradient_method() {
  return {.name = "gradient",
          .help = "backward and an optimizer",
          .needs = {.announces_writes = true, .step_plans = true, .swaps = true, .sample_losses = true},
          .make = make_gradient};
}

Execution in_turn(Passes passes) {
  return [passes = std::move(passes)](std::span<const parallel::Pass> micro_batches) {
    std::vector<model::Losses> losses;
    for (const parallel::Pass& pass : micro_batches) losses.push_back(passes(pass));
    return losses;
  };
}

std::unique_ptr<Step> make_step(Execution execution, int64_t check_every) {
  return std::make_unique<GradientStep>(std::move(execution), nullptr, check_every);
}

std::unique_ptr<Step> make_passes_step(StepPasses passes, parallel::Pipeline* pipeline, int64_t check_every) {
  return std::make_unique<GradientStep>(std::move(passes), pipeline, check_every);
}

std::unique_ptr<Step> make_cuda_graph_step(Execution execution, std::unique_ptr<CudaGraphStep> graphs) {
  return std::make_unique<GradientStep>(std::move(execution), std::move(graphs), /*check_every=*/0);
}

}  // namespace cairn::train
