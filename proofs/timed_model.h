#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/link_model.h"
#include "model/model.h"
#include "model/objective.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

// Blocks that compute nothing and take time: each of their three calls waits on the world's clock, which is virtual on a simulated network.
// So the product's own runtime executes its schedules and messages over them, and the time of a step is exact.
struct TimedBlocks {
  int blocks = 1;
  double forward_s = 0, input_s = 0, weight_s = 0;  // of one block and micro-batch
  int64_t parameter_elements = 0;                   // of each block; 0: it has none
  int64_t boundary_elements = 1;                    // that each sample hands on from block to block
  // Along tp, beside the compute and not hidden by it: elements that are gathered on the way in and summed on the way out, in either
  // direction; 0: none.
  int64_t tensor_elements = 0;
  bool stream = false;  // what blocks hand on is the same on every rank along tp, as a replicated residual stream is
};
std::unique_ptr<model::Model> make_timed_model(comm::World& world, const TimedBlocks& blocks);
std::unique_ptr<model::Objective> make_timed_objective(const TimedBlocks& blocks);

// Links that cost next to nothing.
comm::LinkModel quick_links();

// One step of a pipeline, measured after a first one.
struct PipelineRun {
  std::string schedule = "1f1b";
  int ranks = 4;  // along pp
  int stages_per_rank = 1;
  int micro_batches = 8;
  TimedBlocks blocks = {};
  comm::LinkModel link = quick_links();
  int tp = 1, dp = 1;  // ranks that run each stage side by side
  // What recipes call recompute.mode = stage, recompute.overlap = first and pipeline.scatter_boundaries.
  bool recompute = false, recompute_ahead = true, scatter_boundaries = true;
};
struct PipelineTimes {
  double step_s = 0;
  std::vector<int64_t> peak_in_flight;  // by rank: stage runs at once
  int64_t boundary_bytes_most = 0;      // of any pair of ranks of different stages, in one step
};
PipelineTimes time_pipeline(const PipelineRun& run);

// Steps of data parallelism in which ranks share state out.
struct ShardedRun {
  int zero = 3;
  int ranks = 4;
  TimedBlocks blocks = {};
  comm::LinkModel link = quick_links();
  bool prefetches = true;     // false: memory.prefetch_blocks = 0
  bool reduces_early = true;  // false: gradients leave when backward is over, and the next step waits for the new parameters
};
double time_sharded_step(const ShardedRun& run);

}  // namespace cairn::study
