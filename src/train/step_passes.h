// Steps of several weighted passes over one batch (supernets, consistency between two passes, distillation).
//
//   g = sum over passes k of weight_k d(loss_k / loss_denominator)/dw
//
// All passes of a step run over the same micro-batches. Each has an objective, options, weights and random numbers of its own and may read
// outputs of the others. Gradients add up in the engine's sink and are reduced once, while the last of them is computed.
//
//   one stage     over each micro-batch: forward of one pass after the other; an objective is evaluated as soon as all outputs that it
//                 reads are there; backward of a pass begins as soon as all objectives that give it a gradient are evaluated
//   pipeline      one pass after the other, each over all micro-batches. A pass that reads the outputs of a later one needs a forward of
//                 that one first, without gradients: its draws are the same, so its outputs are too
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/objective.h"
#include "model/pass_options.h"
#include "train/step.h"

namespace cairn::model {
class Weights;
}
namespace cairn::parallel {
class Pipeline;
}

namespace cairn::train {

struct Limit;

// An output of another pass over the same micro-batch, which the objective finds among its values under the name `as`.
struct PassReads {
  size_t pass = 0;               // its place in the list
  std::string value = "logits";  // the output
  std::string as = {};
  bool gradient = false;  // the objective gives a gradient for it, which the other pass takes; otherwise it is a constant
};

struct WeightedPass {
  std::string name = {};                           // for metrics
  const model::Objective* objective = nullptr;     // null: the engine's
  const model::Weights* at = nullptr;              // null: the live weights
  double weight = 1;                               // of the gradients
  bool gradients = true;                           // false: for its outputs and losses only
  uint64_t draw = 0;                               // passes with the same number draw the same random numbers; 0: those of ordinary steps
  std::optional<model::PassOptions> options = {};  // those of the engine with changes; empty: no changes
  std::vector<PassReads> reads = {};
};

// The passes of a step, in the order of their forwards; the same on all ranks. Their number may change from step to step. The first one's
// losses are those of the step. What a list refers to must live until the next list is made.
using PassList = std::function<std::vector<WeightedPass>(const Engine& engine, const StepInput& input)>;

struct StepPasses {
  PassList list;
  std::vector<std::string> measured = {};  // passes whose loss is a metric, NAME_loss; the engine's objective is with_pass_losses(...)
  bool leave_out_layers = false;           // some passes leave out layers
  // Gradients are complete, and the update comes next; `list` is that of the step. Not called where the update is skipped. May be empty.
  std::function<void(Engine& engine, const StepInput& input, std::span<const WeightedPass> list)> before_update = {};
  std::function<sync::StepMetrics()> metrics = {};  // may be empty
};

// The random numbers of a pass with this `draw` in a step with these: those of its calls.
base::Random random_of_pass(const base::Random& step, uint64_t draw);

// `own` with the losses of further passes among its measures. They are not a number (and not reported) where a pass does not run.
std::unique_ptr<model::Objective> with_pass_losses(std::unique_ptr<model::Objective> own, std::vector<std::string> passes);

// Runs the list over each micro-batch and returns the losses of each. `pipeline` null: a single stage.
std::vector<model::Losses> run_passes(std::span<const WeightedPass> list, std::span<const std::string> measured,
                                      std::span<const parallel::Pass> micro_batches, parallel::Pipeline* pipeline = nullptr);

// Like make_step (step.h), with several passes. `pipeline` is borrowed; null: a single stage.
std::unique_ptr<Step> make_passes_step(StepPasses passes, parallel::Pipeline* pipeline, int64_t check_every = 0);

// What such steps do not work with, beside `more`.
std::vector<Limit> several_passes_limits(std::vector<Limit> more);

}  // namespace cairn::train
