// How a run is laid out over ranks, as a value.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "model/context/form.h"
#include "model/context/linear_form.h"
#include "parallel/policies.h"

namespace cairn::parallel {

// How ranks along cp split a sequence (batch/context_batch.h) and see each other's keys.
struct ContextRule {
  model::ContextMethod method = {};
  bool balanced = true;  // each rank has a chunk from the front and its counterpart from the end: equal work under a causal mask
  model::LinearForm linear = model::LinearForm::zeco;
  int64_t scan_blocks = 0;               // of zeco; 0: by the links
  model::StateDtype state_dtype = model::StateDtype::fp32;
  bool automatic = false;                // the method is still to be chosen (layout/settle_context.h)
  model::ContextMistakes mistakes = {};  // never in a plan file
  bool operator==(const ContextRule&) const = default;
};

// What follows from the names in Plan::sync. Only rooms above this one know the rules, so whoever fills in Plan::sync sets this too, from
// sync::needs_of (sync/needs.h). It is not in the plan file and never makes two plans differ.
struct SyncFacts {
  bool local_steps = false;  // the rule between islands lets each of them take its steps by itself (DiLoCo, NoLoCo, ...)
  bool operator==(const SyncFacts&) const { return true; }
};

// The layout of a run. People write one, planners search one, the trainer executes one, the simulator costs one; it is saved with every run
// (layout/plan_file.h). A plan is made in two steps: layout/make_plan.h fills in the mesh from a recipe, then, once the model is known,
// placements and pipeline stages.
//
// ZeRO is part of it: state is sharded over the ranks along `shard` and `cp`.
//   zero   optimizer state   gradients   parameters
//    0     on every rank     whole       whole
//    1     sharded           whole       whole         (all-gather of parameters after the update)
//    2     sharded           sharded     whole         (reduce-scatter of gradients)
//    3     sharded           sharded     sharded       (all-gather of a block's parameters when a pass reaches it)
struct Plan {
  mesh::Mesh mesh;                                    // axes from the outermost: island, pp, dp, shard, cp, tp, ep
  std::map<std::string, mesh::Placement> placements;  // by parameter name; replicated where absent
  std::map<std::string, std::string> sync;            // name of the sync rule, by replicating axis ("dp", "island")
  SyncFacts sync_facts = {};                          // of the rule along "island"
  int64_t micro_batch = 1;                            // samples of one pass on one rank
  int64_t micro_batches = 0;                          // passes of a step on every rank; 0: follows from micro_batch
  std::vector<int64_t> stage_blocks = {};             // blocks of each pipeline stage; empty: one stage has all of them
  std::vector<int> rank_of_stage = {};                // rank along pp of each stage; as long as stage_blocks
  std::string schedule = {};                          // name of the pipeline schedule (schedule.h); empty: no pipeline
  int registers = 0;                                  // receive buffers per value and stage; 0: as many as the schedule needs
  Routing routing = Routing::fixed;
  ContextRule context = {};  // along cp
  int zero = 0;              // ZeRO stage, 0 to 3
  Partition partition = Partition::slices;
  std::string precision = "fp32";
  int island = 0, islands = 1;  // where every island is a run of its own: this island's number, and how many there are

  bool operator==(const Plan&) const = default;
};

// Whether there are several islands and each takes its steps by itself.
bool islands_step_separately(const Plan& plan);

// Whether experts lie along ep: ranks along it then hold different parts of one model. Otherwise they are replicas, as along dp.
bool places_experts(const Plan& plan);

// The axes along which the ranks of one replica hold different parts of its model, before ZeRO: pp, tp, and ep where experts lie along it.
std::vector<std::string> model_axes(const Plan& plan);

// The ranks that take every step together with `rank`, itself included, ascending: all ranks, or those of its island where islands step
// separately.
std::vector<int> step_group_of(const Plan& plan, int rank);

// The axes along which ranks have different samples of a step.
inline const std::vector<std::string> kSampleAxes{"island", "dp", "shard", "ep"};

// The placement of a parameter; replicated where the plan says nothing.
mesh::Placement placement_of(const Plan& plan, const std::string& parameter);

// context.form as recipes and plan files have it.
std::string context_form(const Plan& plan);

// Bytes of an element in the precision that passes compute in.
int64_t compute_bytes(const Plan& plan);

// The text of a plan file. What has its default is left out where older files do not have it, so that equal plans have equal texts.
std::string to_json(const Plan& plan);

}  // namespace cairn::parallel
