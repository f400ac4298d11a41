// The features that a recipe can use. A step method declares the features that it does not work with (StepNeeds::limits); features.cpp
// lists pairs of features that do not work together. The trainer derives every refusal from these lists.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::parallel {
struct Plan;
}

namespace cairn::train {

struct Settings;

enum class Feature {
  bf16,                // passes compute in bf16
  bf16_parameters,     // parameters are kept in bf16, without fp32 master weights
  bf16_gradients,      // gradients are summed in bf16
  fp8,                 // fp8 linear layers
  loss_chunks,         // chunked cross entropy
  frozen_cache,        // outputs of leading layers without trained parameters are kept by sample
  cuda_graph,          // steps run as CUDA graphs
  check_every,         // gradients are computed twice and compared
  recovery,            // bad steps are skipped or rolled back
  rollback,            // bad steps are rolled back
  sync_check,          // a step fails where the host waits for the GPU
  zero,                // optimizer state is sharded (ZeRO 1 to 3)
  zero3,               // parameters are sharded too
  zero1_or_2,          // state is sharded, and passes read whole parameters
  replicas,            // several ranks hold the same gradients, which a sync rule sums
  swapped_parameters,  // parameters lie in host memory or on disk between their uses
  swapped_gradients,   // gradients do
  swapped_optimizer,   // the optimizer's state does
  background_saves,    // snapshots are copied while training goes on (snapshot.mode)
  memory_snapshots,    // snapshots in the memory of other machines
  tp,                  // tensor parallelism
  cp,                  // context parallelism
  pp,                  // pipeline parallelism
  ep,                  // expert parallelism
  fssdp,               // experts are copied to more ranks for a step
  reshard,             // experts get new homes between steps
  mesh_island,         // islands in one world
  local_steps,         // islands that take local steps between two synchronisations
  remote_islands,      // islands that are separate worlds
  several_ranks,       // more than one rank in all, spelled as the axes that have them
  dp_rule,             // a sync.dp.kind other than the default
  host_sync,           // a sync.dp.kind that decides on the host what a step does
  tensor_overlap,      // tensor-parallel products overlap with their messages
  stage_recompute,     // whole pipeline stages are recomputed
  stream,              // layers are computed in slices along the sequence
  spectral,            // spectral linear layers
  dropout,             // passes draw random numbers
  running_statistics,  // buffers that a pass updates (batch norm)
  step_plans,          // a plan for each step says which ranks work on a sequence (context.plan)
  unequal_passes,      // ranks run different numbers of passes in a step
  sequences,           // samples as long as their documents
  pairs,               // data of answer pairs
  rollouts,            // data of answers with advantages
  retrieval,           // data of queries with passages
  sample_losses,       // a sampler that needs the loss of every sample (data::SamplerNeeds)
  whole_batch,         // a sampler that composes whole batches
  adapters_behind,     // adapters that read the result of a whole branch
};

// One feature that a recipe uses, as the recipe spells it: "mesh.tp = 2".
struct UsedFeature {
  Feature feature;
  std::string spelled;
};
std::vector<UsedFeature> used_features(const Settings& settings, const parallel::Plan& plan);

// A feature that a method or a model kind does not work with. `why` gives the reason and what to do instead: "each rank perturbs whole
// parameters: use mesh.dp".
struct Limit {
  Feature feature;
  std::string_view why;
};

// Refuses the first used feature that is among the limits of `chosen` ("train.method = one_byte").
void refuse_limits(std::string_view chosen, std::span<const Limit> limits, std::span<const UsedFeature> used);

// Two features that do not work together. The message is about `refused`, gives `why`, and ends with what to do instead.
struct Conflict {
  Feature refused;
  Feature with;
  std::string_view why;
};
// All of them. The list is in features.cpp.
std::span<const Conflict> conflicts();

// Refuses the first pair of used features that is among the conflicts.
void refuse_conflicts(std::span<const UsedFeature> used);

// Whether `feature` conflicts with one of the used features.
bool has_conflict(Feature feature, std::span<const UsedFeature> used);

}  // namespace cairn::train
