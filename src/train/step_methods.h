// The list of methods that train.method can name. A new one is its own files and one line in step_methods.cpp.
#pragma once
#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/schema.h"
#include "train/features.h"
#include "train/step.h"

namespace cairn::comm {
class World;
}
namespace cairn::model {
class Objective;
}

namespace cairn::train {

struct Job;

// What a method needs and what it does not work with, as data. The trainer reads this and compares no method names.
struct StepNeeds {
  bool gradients = true;   // passes give weight gradients, and every rank keeps memory for them
  bool optimizer = true;   // optim.* updates the parameters; false: the step is an update rule of its own
  bool gpu = true;         // runs on GPUs
  bool pairs = false;      // trains on pairs of answers (data.kind = "preference"), and on nothing else
  bool rollouts = false;   // trains on answers of a policy (data.kind = "rollouts"), and on nothing else
  bool retrieval = false;  // trains encoders on queries with passages (data.kind = "retrieval"), and on nothing else
  bool messages = false;   // islands exchange messages of the method (sync/message_rounds.h); false: parameters or gradients
  bool reference = false;  // keeps a frozen copy of the initial weights (a reference model)
  // Whatever it changes of what snapshots hold, it tells TrainedParameters::barrier first (mesh/write_barrier.h); optimizers do so by
  // themselves. False: the trainer waits for a lazy snapshot's copies before the step begins.
  bool announces_writes = false;
  bool step_plans = false;     // runs the passes of a step plan (StepInput::plan)
  bool swaps = false;          // reads parameters and gradients through the store alone, so that they may lie in a tier (memory.*)
  bool sample_losses = false;  // gives the losses of single samples (StepOutput::sample_losses)
  std::vector<Limit> limits = {};
  // Which shares of the samples a rank computes, of so many along dp. Null: its own alone.
  std::vector<int> (*shares)(const Settings& settings, int rank, int ranks) = nullptr;
  // The work of a step in units of a forward pass over its batch. Null: 3 (one forward, and a backward that costs two).
  double (*forward_passes)(const Settings& settings) = nullptr;
  // Passes over one micro-batch whose activations are kept at a time, on a single stage. Null: 1.
  int64_t (*passes_at_once)(const Settings& settings) = nullptr;

  bool chosen_by_data() const { return pairs || rollouts || retrieval; }
};

// The limits of a method that makes its own passes: `more`, and the features that only ordinary passes have.
std::vector<Limit> own_passes_limits(std::vector<Limit> more);

// The arguments of StepMethod::make. Everything is borrowed and outlives the step.
struct StepContext {
  Job& job;
  comm::World& world;
  const std::vector<bool>& trained;  // for each parameter of the model: whether it is trained
  // Gives the parameters their values from before the first step again. Collective.
  std::function<void()> load_start_weights = {};
};

// The recipe section of a method: "train.dpo". StepOptions::from(schema) makes it; Settings::step_options<O>() gives the values.
struct StepOptions {
  std::function<base::Section()> section = {};  // empty: the method has no keys of its own
  std::function<std::any(base::Recipe&)> read = {};

  template <typename O>
  static StepOptions from(base::Schema<O> (*schema)()) {
    return {[schema] { return schema().section(); }, [schema](base::Recipe& recipe) { return std::any(recipe.read(schema())); }};
  }
};

struct StepMethod {
  std::string name;  // as train.method has it
  std::string help;  // for the reference page: what a step does
  StepNeeds needs = {};
  std::unique_ptr<Step> (*make)(const StepContext& context) = nullptr;
  StepOptions options = {};
  // Refuses values of the method's own keys that contradict each other or the rest of the recipe; null: nothing to check.
  void (*check)(const Settings& settings, const parallel::Plan& plan) = nullptr;
  // The objective in place of the model's own, for plans made without a run; null: the model's own.
  std::unique_ptr<model::Objective> (*objective)(const Settings& settings) = nullptr;
  // What of the rest of the recipe chooses the method, as the recipe spells it ("model.adapter.kind = mosa"); empty: nothing does. Where
  // something does, no other method will do; and the method cannot be named. Null: train.method names it, or the data choose it.
  std::string (*chosen_by)(const Settings& settings) = nullptr;
};

// All methods; the first is the default of train.method.
const std::vector<StepMethod>& step_methods();
// The names that train.method may have, and one sentence about each.
std::vector<std::string> step_method_names();
std::string step_method_help();

// The method of a recipe: the one that train.method names, or the one that its data or another part of it choose.
const StepMethod& step_method(const Settings& settings);

// Refuses features that the chosen method does not work with, and runs the `check` of every method.
void check_step_method(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
