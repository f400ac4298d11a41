#pragma once
#include "base/random.h"
#include "mesh/axes.h"
#include "mesh/batch.h"
#include "mesh/gradients.h"
#include "model/call.h"
#include "model/objective.h"
#include "model/pass_options.h"
#include "model/values.h"
#include "parallel/plan.h"

namespace cairn::base {
class MemoryTags;
class Trace;
}  // namespace cairn::base
namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// One run through a model: at which weights, on what, judged how, and where its gradients go. Everything but the batch is borrowed.
struct Pass {
  const model::Model& model;
  const model::Weights& at;
  model::Buffers& buffers;
  const mesh::Axes& axes;
  mesh::Batch batch;  // on the model's device
  const model::Objective& objective;
  mesh::Gradients* into = nullptr;  // null: losses only
  double weight = 1;                // of the summed loss
  base::Random random = {};
  base::Trace* trace = nullptr;                  // null: not traced
  base::MemoryTags* memory = nullptr;            // where saved activations are booked; null: nowhere
  ContextRule context = {};                      // where ranks along cp share the sequences out
  const model::PassOptions& options = model::kDefaultPassOptions;  // borrowed, the same for all passes of a run
  bool recompute = false;                        // this pass recomputes the activations that `options` name
  std::vector<std::string> outputs = {};         // values that blocks outside of this run read
  model::Values* field_gradients = nullptr;      // gains those of the batch's fields that have any (a perturbation); null: not wanted
};

// Forward through all blocks in order, the objective, and, where gradients are asked for, both gradients of each block in reverse.
// A value is dropped after its last reader. What has to travel (parts of weights, of activations, of gradients) does so as the weights, the
// blocks and the sink say; nothing else waits for the device.
model::Losses execute(const Pass& pass);

// Of a pass that found none: where it has no samples, or another rank has the last blocks.
model::Losses no_losses(const Pass& pass);

}  // namespace cairn::parallel
