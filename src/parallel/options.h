#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::parallel {

// The recipe's mesh.* keys: how many ranks stand along each axis.
struct MeshOptions {
  int64_t dp = 0;
  int64_t shard = 0;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t ep = 1;
  int64_t island = 1;
};
base::Schema<MeshOptions> mesh_schema();

// The recipe's memory.* keys.
struct MemoryOptions {
  int64_t zero = -1;
  bool accumulate_unsharded = true;
};
base::Schema<MemoryOptions> memory_schema();

// The recipe's pipeline.* keys.
struct PipelineOptions {
  std::string schedule = "1f1b";
  std::string csv;
  int64_t micro_batches = 0;
  int64_t stages_per_rank = 0;
  std::vector<std::string> split;
  int64_t registers = 0;
  std::string routing = "auto";
};
base::Schema<PipelineOptions> pipeline_schema();

// The recipe's recompute.* keys.
struct RecomputeOptions {
  std::string mode = "none";
  std::vector<std::string> modules;
  int64_t every = 1;
  double budget_mib = 0;
  bool except_last = false;
  std::string inputs = "device";
};
base::Schema<RecomputeOptions> recompute_schema();

// The recipe's tensor.* keys.
struct TensorOptions {
  bool overlap = false;
  bool late_sums = true;
};
base::Schema<TensorOptions> tensor_schema();

// The recipe's context.* keys.
struct ContextOptions {
  std::string form = "ring";
  bool balanced = true;
};
base::Schema<ContextOptions> context_schema();

}  // namespace cairn::parallel
