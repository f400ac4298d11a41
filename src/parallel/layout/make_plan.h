#pragma once
#include "parallel/options.h"
#include "parallel/plan.h"
#include "parallel/schedule.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// The recipe's keys about the layout of a run.
struct LayoutOptions {
  MeshOptions mesh;
  MemoryOptions memory;
  ContextOptions context;
  TensorOptions tensor;
  PipelineOptions pipeline;
  RecomputeOptions recompute;
  PlaceOptions place = {};
  ExpertLayoutOptions expert = {};
};

// First step: the mesh of these options on `ranks` ranks, the ZeRO stage and the context rule. Throws bad_input for sizes that do not fit,
// with sizes that do. Axes from the outermost: island, pp, dp (replicas), shard, cp, tp, ep. Neighbouring ranks stand along the innermost
// axes, which communicate most.
Plan make_plan(const LayoutOptions& options, int ranks);

// Second step: fills in what depends on the model, the placement of each parameter and the blocks of each pipeline stage. Throws bad_input
// for what the model does not allow. A plan that has stages or placements already (a person or --infer made it) keeps them, where blocks
// have a form for them (dtensor_block.h). `length`: of the sequences, for the cost of attention. `place`
// replaces the placement of some parameters.
void fit_to_model(Plan& plan, const model::Model& model, const PipelineOptions& pipeline, int64_t length, const PlaceOptions& place = {});

// The pipeline's schedule for so many micro-batches, from its name or its file, checked.
Schedule schedule_of(const PipelineOptions& options, int ranks, int micro_batches);
// The same with the recomputations, offloads, gathers and reductions that these options ask for (schedule/extra_actions.h).
Schedule schedule_of(const LayoutOptions& options, const Plan& plan, int micro_batches);

}  // namespace cairn::parallel
