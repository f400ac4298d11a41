// The recipe's keys about the layout of a run.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/schema.h"
#include "parallel/policies.h"
#include "parallel/schedule.h"

namespace cairn::parallel {

// mesh.*: how many ranks there are along each axis.
struct MeshOptions {
  int64_t dp = 0;  // 0: the ranks that the other axes leave
  int64_t shard = 0;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t ep = 1;
  int64_t island = 1;
};
base::Schema<MeshOptions> mesh_schema();

// memory.*: what is sharded.
struct MemoryOptions {
  int64_t zero = -1;  // ZeRO stage (plan.h); -1: 3 where mesh.shard is above 1, else 0
  bool accumulate_unsharded = true;
  model::PartitionActivations partition_activations = model::PartitionActivations::automatic;
  int64_t prefetch_blocks = 1;
  memory::TierKind parameters = memory::TierKind::device, gradients = memory::TierKind::device, optimizer = memory::TierKind::device;
  std::string device_budget = "auto", host_budget = "auto", disk_budget = "auto";
  std::string disk_path;
  Partition partition = Partition::slices;
  int64_t read_ahead = 2;
  int64_t group_elements = int64_t{1} << 24;
  double disk_read_mib_s = 0, disk_write_mib_s = 0, disk_latency_ms = 0;
  double slowdown_max = 100;

  bool swaps() const {  // something lies elsewhere than on the device
    return parameters != memory::TierKind::device || gradients != memory::TierKind::device || optimizer != memory::TierKind::device;
  }
};
base::Schema<MemoryOptions> memory_schema();
// A budget: bytes, or nothing where it is "auto". Refuses anything else. `key`: "memory.host_budget".
std::optional<int64_t> budget_bytes(const char* key, const std::string& text);

// pipeline.*: how the stages along pp work on the micro-batches of a step.
struct PipelineOptions {
  std::string schedule = kDefaultSchedule;  // a name of schedule_kinds()
  std::string csv;
  int64_t micro_batches = 0;
  int64_t stages_per_rank = 0;
  std::vector<std::string> split;
  int64_t registers = 0;
  RoutingOption routing = RoutingOption::automatic;
  bool scatter_boundaries = true;
  ReduceTime reduce = ReduceTime::early;
};
base::Schema<PipelineOptions> pipeline_schema();

// recompute.*: activation recomputation (checkpointing) and offload.
struct RecomputeOptions {
  RecomputeMode mode = RecomputeMode::none;
  std::vector<std::string> modules;
  int64_t every = 1;
  double budget_mib = 0;
  int64_t slice = 0;
  int64_t head_slice = 128;
  bool except_last = false;
  RecomputeInputs inputs = RecomputeInputs::device;
  RecomputeOverlap overlap = RecomputeOverlap::first;
};
base::Schema<RecomputeOptions> recompute_schema();
// With mode = stream: the tokens of a slice of sequences of `length` tokens, and those of a chunk of logits. 0: other modes.
int64_t slice_tokens(const RecomputeOptions& options, int64_t length);
int64_t head_slice_tokens(const RecomputeOptions& options);

// tensor.*: how ranks along tp work together.
struct TensorOptions {
  bool overlap = false;
  bool overlap_residual_sums = true;
};
base::Schema<TensorOptions> tensor_schema();

// plan.place: parameters that are placed otherwise than their block would have them. By pattern of their names (* stands for anything): B
// (replicated along tp) or S(DIM).
using PlaceOptions = std::map<std::string, std::string>;
inline constexpr const char* kPlaceTable = "plan.place";
base::Section place_section();

// context.*: how ranks along cp work together. form: a model::ContextMethod, or kAutomaticContext.
struct ContextOptions {
  std::string form = "ring";
  bool balanced = true;
  ContextPlan plan = ContextPlan::fixed;
  int64_t tokens_per_rank = 0;
  model::LinearForm linear = model::LinearForm::zeco;
  int64_t scan_blocks = 0;
  model::StateDtype state_dtype = model::StateDtype::fp32;
};
base::Schema<ContextOptions> context_schema();

// expert.*: how ranks along ep share the experts of a model.
struct ExpertLayoutOptions {
  ExpertPlacement placement = ExpertPlacement::ep;
  ExpertDispatch dispatch = ExpertDispatch::automatic;
  int64_t node_ranks = 0;
  int64_t window = 5;
  int64_t memory_slots = 2;
  int64_t overlap_degree = 0;
  bool calibrate = false;
  int64_t reshard_every = 100;
  bool rematerialize = false;
  ExpertCompress compress = ExpertCompress::none;
  int64_t hashes = 6;
  int64_t hash_dim = 32;
  bool residual = false;
};
base::Schema<ExpertLayoutOptions> expert_layout_schema();

}  // namespace cairn::parallel
