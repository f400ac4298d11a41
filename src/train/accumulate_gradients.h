// Gradient accumulation: the one place where a step's gradients are computed and reduced.
//
//   batch -> micro-batches -> passes -> gradient sink (parallel/state/gradient_reducer.h)
//         -> summed over ranks with copies (tp, cp, pp), reduce-scattered over ranks that shard state (ZeRO)
//         -> `ready(piece)` -> the step hands it to the sync rule (all-reduce over replicas)
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/pass.h"
#include "parallel/step_plan/step_plan.h"
#include "train/engine.h"
#include "train/step.h"

namespace cairn::train {

// The passes of one step over this rank's samples, one for each micro-batch. Their gradients go to the engine's parameter store. Ranks with
// fewer samples than others have empty micro-batches at the end, so that all ranks run the same number of passes.
struct TrainingPasses {
  std::vector<mesh::Batch> batches;
  std::vector<mesh::Axes> axes;  // of each pass, where passes run on sets of ranks of their own; else empty
  std::vector<parallel::Pass> passes;
  int64_t with_samples = 0;         // passes that have samples
  int64_t max_passes = 0;           // the most of any rank
  std::vector<char> samples_in = {};  // by pass, where empty ones may come before others; else empty
  int64_t backward_passes = 1;        // over each micro-batch (step_passes.h)
  bool some_leave_out = false;        // some of these leave out layers
};

// `weight` scales the summed loss of every pass: 1 / loss denominator, so that gradients of micro-batches and ranks add up to the gradient
// of the mean. `step` selects the random numbers.
TrainingPasses training_passes(Engine& engine, const mesh::Batch& batch, int64_t max_local_samples, double weight, int64_t step);

// The passes of one step under a step plan: those of this rank's units, each along cp over the ranks of its unit (Engine::pool).
// `sequences` are what parallel::places_of names, ragged.
TrainingPasses planned_passes(Engine& engine, const mesh::Batch& sequences, const parallel::StepPlan& plan, double weight, int64_t step);

// Calls `run` with the passes and returns its result. When it returns, all gradients are complete and reduced over the ranks of this
// replica. `ready` is called with the index of each piece (Engine::trained.gradients) when its gradient is complete, while the gradients of
// other pieces are still computed.
std::vector<at::Tensor> accumulate_gradients(Engine& engine, const TrainingPasses& all, const std::function<void(int64_t piece)>& ready,
                                             const std::function<std::vector<at::Tensor>(std::span<const parallel::Pass>)>& run);

// The sums of losses and of the objective's measures over passes; each undefined where there is none.
std::vector<at::Tensor> sum_losses(std::span<const model::Losses> losses);

}  // namespace cairn::train
