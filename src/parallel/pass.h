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
class FrozenPrefix;
class Model;
}  // namespace cairn::model

namespace cairn::parallel {

// One forward pass through a model, and its backward pass where gradients are wanted: with which weights, on which batch, with which
// objective, and where gradients go. Everything but the batch is borrowed and must outlive the pass.
struct Pass {
  const model::Model& model;
  const model::Weights& at;  // the point at which the model is evaluated
  model::Buffers& buffers;
  const mesh::Axes& axes;
  mesh::Batch batch;  // on the model's device
  const model::Objective& objective;
  mesh::Gradients* into = nullptr;  // null: losses only
  bool as_training = false;         // without gradients, but with the values of a pass that has them (model::Needs)
  double weight = 1;                // of the summed loss
  base::Random random = {};
  base::Trace* trace = nullptr;                                    // null: not traced
  base::MemoryTags* memory = nullptr;                              // counts saved activations; null: not counted
  ContextRule context = {};                                        // how sequences are split along cp
  const model::PassOptions& options = model::kDefaultPassOptions;  // borrowed, the same for all passes of a run
  bool recompute = false;                                          // this pass recomputes the activations that `options` name
  std::vector<std::string> outputs = {};                           // values that blocks outside of this run read (other pipeline stages)
  comm::Group* progress = nullptr;                                 // driven while blocks compute (model::Call); null: tp's
  model::Values* field_gradients = nullptr;                        // receives gradients of batch fields (a perturbation); null: not wanted
  model::FrozenPrefix* frozen = nullptr;  // of a pass with gradients: leading blocks without backward; null: all have one
};

// Runs forward through all blocks in order, then the objective, then, where gradients are wanted, both gradients of each block in reverse.
// A value is dropped after its last reader. Communication is the business of the weights (gathers), the blocks (tp, cp) and the gradient
// sink (reductions). Does not wait for the device otherwise.
model::Losses execute(const Pass& pass);

// Whether a pass runs its blocks: it has samples, or ranks along ep send rows to the experts of this one in every pass.
bool runs_blocks(const Pass& pass);

// Zero losses: of a pass without samples, or on a rank that does not have the last blocks.
model::Losses no_losses(const Pass& pass);

}  // namespace cairn::parallel
