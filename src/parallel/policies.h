// The recipe words that this room acts on, as enums with their spelling.
#pragma once
#include "base/enum_names.h"
#include "memory/tier.h"
#include "model/context/linear_form.h"
#include "model/pass_options.h"

namespace cairn::parallel {

// context.form where the trainer is to choose (layout/settle_context.h).
inline constexpr const char* kAutomaticContext = "auto";

// context.plan: who decides how many ranks work on a sequence.
//   fixed      the mesh: mesh.cp, for every sequence
//   bytescale  a plan for each step: as many ranks as a sequence needs, each rank its own number of passes
//   flexsp     a plan for each step: groups of ranks for each micro-batch, the same number of passes on every rank
enum class ContextPlan { fixed, bytescale, flexsp };
inline constexpr base::EnumName<ContextPlan> kContextPlanNames[] = {
    {ContextPlan::fixed, "fixed"}, {ContextPlan::bytescale, "bytescale"}, {ContextPlan::flexsp, "flexsp"}};

// context.linear: how the ranks along cp hand on states of linear attention.
inline constexpr base::EnumName<model::LinearForm> kLinearFormNames[] = {
    {model::LinearForm::zeco, "zeco"}, {model::LinearForm::lasp1, "lasp1"}, {model::LinearForm::lasp2, "lasp2"}};

// context.state_dtype: in what these states travel.
inline constexpr base::EnumName<model::StateDtype> kStateDtypeNames[] = {{model::StateDtype::fp32, "fp32"},
                                                                         {model::StateDtype::bf16, "bf16"}};

// expert.placement: which ranks hold an expert's weights.
//   ep     one rank along ep, the same one in every step
//   fssdp  that rank, and copies of busy experts on others for one step (experts/copied_experts.h)
enum class ExpertPlacement { ep, fssdp };
inline constexpr base::EnumName<ExpertPlacement> kExpertPlacementNames[] = {{ExpertPlacement::ep, "ep"},
                                                                            {ExpertPlacement::fssdp, "fssdp"}};

// expert.dispatch: the way of tokens to their experts.
//   automatic     whichever the links make faster
//   flat          from rank to rank
//   hierarchical  inside a machine first, then between machines
enum class ExpertDispatch { automatic, flat, hierarchical };
inline constexpr base::EnumName<ExpertDispatch> kExpertDispatchNames[] = {
    {ExpertDispatch::automatic, "auto"}, {ExpertDispatch::flat, "flat"}, {ExpertDispatch::hierarchical, "hierarchical"}};

// What travels to experts in training: rows as they are, or centroids of similar rows (LSH-MoE).
enum class ExpertCompress { none, lsh };
inline constexpr base::EnumName<ExpertCompress> kExpertCompressNames[] = {{ExpertCompress::none, "none"}, {ExpertCompress::lsh, "lsh"}};

// Where the micro-batches of islands with a pipeline each go on after a stage: in the next stage of the same island, or in that of an
// island drawn at random (NoLoCo).
enum class Routing { fixed, random };
inline constexpr base::EnumName<Routing> kRoutingNames[] = {{Routing::fixed, "fixed"}, {Routing::random, "random"}};

// pipeline.routing as a recipe has it. `automatic` leaves the choice to the sync rule between islands.
enum class RoutingOption { automatic, random, fixed };
inline constexpr base::EnumName<RoutingOption> kRoutingOptionNames[] = {
    {RoutingOption::automatic, "auto"}, {RoutingOption::random, "random"}, {RoutingOption::fixed, "fixed"}};

// recompute.mode: which activations are recomputed in backward (activation checkpointing).
//   none       nothing: every block keeps what its gradients need
//   full       every block but the one that makes the logits keeps its inputs alone
//   selective  the same for the blocks that RecomputeRule::modules and ::every name
//   stage      a pipeline stage (or the whole model) keeps its inputs alone
//   budget     as many blocks, from the first on, as it takes to stay within RecomputeRule::budget_bytes
//   stream     every layer keeps its input alone, and is computed in slices along the sequence (activations/slices.h)
enum class RecomputeMode { none, full, selective, stage, budget, stream };
inline constexpr base::EnumName<RecomputeMode> kRecomputeModeNames[] = {
    {RecomputeMode::none, "none"},   {RecomputeMode::full, "full"},     {RecomputeMode::selective, "selective"},
    {RecomputeMode::stage, "stage"}, {RecomputeMode::budget, "budget"}, {RecomputeMode::stream, "stream"}};

// memory.partition_activations. It was a boolean.
inline constexpr base::EnumName<model::PartitionActivations> kPartitionActivationsNames[] = {
    {model::PartitionActivations::automatic, "auto"},
    {model::PartitionActivations::on, "on", "true"},
    {model::PartitionActivations::off, "off", "false"}};

// memory.parameters, memory.gradients, memory.optimizer: where they lie between their uses.
inline constexpr base::EnumName<memory::TierKind> kTierKindNames[] = {
    {memory::TierKind::device, "device"}, {memory::TierKind::host, "host"}, {memory::TierKind::disk, "disk"}};

// memory.partition: who keeps what of a unit that ranks shard.
//   slices  every rank an equal slice, which it reads over its own link (bandwidth-centric)
//   owner   one rank all of it, one unit after the other: the baseline, which reads a unit over one link
enum class Partition { slices, owner };
inline constexpr base::EnumName<Partition> kPartitionNames[] = {{Partition::slices, "slices"}, {Partition::owner, "owner"}};

// recompute.inputs: where the inputs of recomputed blocks wait until backward needs them (host: activation offload).
enum class RecomputeInputs { device, host };
inline constexpr base::EnumName<RecomputeInputs> kRecomputeInputsNames[] = {{RecomputeInputs::device, "device"},
                                                                            {RecomputeInputs::host, "host"}};

// recompute.overlap: what a pipeline stage recomputes while it waits for the gradient of the stage after it.
//   none   nothing: recomputation begins when the gradient has arrived
//   first  what backward needs first: the last recomputed block, or the whole stage with RecomputeMode::stage
//   all    every recomputed block of the stage, whose activations are then kept at once
enum class RecomputeOverlap { none, first, all };
inline constexpr base::EnumName<RecomputeOverlap> kRecomputeOverlapNames[] = {
    {RecomputeOverlap::none, "none"}, {RecomputeOverlap::first, "first"}, {RecomputeOverlap::all, "all"}};

// pipeline.reduce: when the gradients of a stage are reduced over ranks.
//   early  each as soon as it is complete, while the stage's last backward still runs
//   stage  all of them after that backward
enum class ReduceTime { early, stage };
inline constexpr base::EnumName<ReduceTime> kReduceTimeNames[] = {{ReduceTime::early, "early"}, {ReduceTime::stage, "stage"}};

}  // namespace cairn::parallel
