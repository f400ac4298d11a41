#pragma once
#include "parallel/options.h"
#include "parallel/plan.h"
#include "parallel/schedule.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// What a recipe says about the layout of a run.
struct LayoutOptions {
  MeshOptions mesh;
  MemoryOptions memory;
  ContextOptions context;
  TensorOptions tensor;
  PipelineOptions pipeline;
  RecomputeOptions recompute;
};

// The mesh of these options on so many ranks, and what is shared out along it. Refuses what does not fit, with what would. Axes from the
// outermost: island, pp, dp (replicas), shard, cp, tp, ep; neighbours in rank order stand along the innermost, which talk most.
Plan make_plan(const LayoutOptions& options, int ranks);

// Fills in what depends on the model: how each parameter lies, which blocks each stage of a pipeline runs. Refuses what the model does not
// allow. A plan that says some of it already (a person wrote or edited it) keeps its stages; placements it names must be those that the
// blocks can run. `length`: of the sequences, which attention's cost depends on.
void fit_to_model(Plan& plan, const model::Model& model, const PipelineOptions& pipeline, int64_t length);

// The pipeline's schedule for so many micro-batches, checked.
Schedule schedule_of(const PipelineOptions& options, int ranks, int micro_batches);

}  // namespace cairn::parallel
