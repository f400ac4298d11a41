#pragma once
#include <functional>
#include <memory>

#include "mesh/batch.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/plan.h"
#include "proofs/layout_run.h"

namespace cairn::study {

// Training of a model that no recipe can ask for, by the trainer's own step, under a plan.
struct HandRun {
  std::function<std::unique_ptr<model::Model>()> model;
  std::function<std::unique_ptr<model::Objective>()> objective;
  std::function<mesh::Batch(int64_t step)> batch;  // of all ranks; steps count from 1
  int64_t loss_denominator = 1;                    // what the loss is a mean over
  parallel::Plan plan;                             // without stages: these follow from `schedule`
  uint64_t seed = 1;
  int64_t steps = 10;
  int64_t micro_batches = 1;   // of each rank
  double clip = 1;             // of the gradient's norm; 0: none
  std::string schedule = {};   // where the plan has an axis pp: one stage a rank, blocks divided evenly
  std::string recompute = {};  // of a pipeline's stages: always, except_last (of the micro-batches), or empty for never
};
Trained train_by_hand(const HandRun& run);

// Random tokens and targets.
struct RandomTokens {
  uint64_t seed = 1;
  int64_t step = 1;
  int64_t samples = 1, length = 1, vocab = 2;
};
mesh::Batch random_tokens(const RandomTokens& of);

}  // namespace cairn::study
