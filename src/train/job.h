// The state of a run on one rank: its configuration, the objects that run, and its progress. train::build makes it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "base/memory_tags.h"
#include "base/trace.h"
#include "data/batches.h"
#include "data/loader.h"
#include "data/open.h"
#include "data/sampler.h"
#include "kernels/device.h"
#include "optim/lr_schedule.h"
#include "parallel/plan.h"
#include "parallel/state/full_tensor_gather.h"
#include "parallel/state/state_map.h"
#include "train/bad_steps.h"
#include "train/between_steps.h"
#include "train/engine.h"
#include "train/islands/remote_islands.h"
#include "train/report/kernel_report.h"
#include "train/report/memory_report.h"
#include "train/sample_feedback.h"
#include "train/settings.h"
#include "train/start.h"
#include "train/state/snapshot_barrier.h"
#include "train/step.h"
#include "train/step_plan/planned_batches.h"

namespace cairn::base {
class Clock;
}
namespace cairn::comm {
class FlightRecorder;
}

namespace cairn::train {

// The configuration. It does not change after build(), but for the placements of experts (train/experts/move_experts.h).
struct RunConfig {
  Settings settings;
  std::string recipe_toml;  // resolved, each value with its origin
  parallel::Plan plan;
  at::Device device{at::kCPU};
  std::filesystem::path out;  // the run directory of this rank's step group; empty: nothing is written
  bool writes = false;        // this rank writes into that directory
};

// Traces, profilers and memory accounts.
struct Instruments {
  const base::Clock* wall = nullptr;       // real time; borrowed from the world
  comm::FlightRecorder* flight = nullptr;  // of the world; null: its transport has none
  std::unique_ptr<base::Trace> trace;
  std::unique_ptr<KernelReport> kernel_report;  // null without log.kernels
  std::unique_ptr<MemoryReport> memory_report;  // null without log.memory
  std::unique_ptr<base::MemoryTags> memory;     // bytes by purpose, booked where they are allocated
  std::vector<base::BookedMemory> booked;
  std::vector<std::pair<std::string, double>> startup;  // seconds that each part of build() took
};

// Where the run stands. A snapshot restores all of it.
struct RunProgress {
  int64_t steps_done = 0;
  int64_t tokens_done = 0;
  double seconds_done = 0;
  int64_t updates_skipped = 0;  // steps done without an update
  int64_t rollbacks = 0;
  int64_t batches_passed = 0;  // batches left out by rollbacks: step s trains on the sampler's batch s + batches_passed
};

// What makes batches while the step before runs: a loader, or, with context.plan, plans of each step.
struct BatchesAhead {
  comm::Group* plan_group = nullptr;        // the step group, for its plans; null: context.plan = fixed
  PlannedBatches::Planner planner;          // empty: context.plan = fixed
  std::unique_ptr<data::Loader> loader;     // null with plans
  std::unique_ptr<PlannedBatches> planned;  // null without
};

// One per rank. It must not move in memory after start_loader(), because the loader's thread reads it. Members are destroyed in reverse
// order, which matters where a comment says so.
struct Job {
  RunConfig config;
  data::SampleShares shares;                                     // this rank's part of each global batch
  Instruments instruments;                                       // before everything whose memory it counts
  std::unique_ptr<kernels::DeterministicAlgorithms> repeatable;  // null without train.deterministic
  data::OpenedData data;
  data::Subset subset;  // the training samples of this run
  std::unique_ptr<data::Sampler> sampler;
  std::unique_ptr<data::BatchSource> batches;   // reads all of the above
  std::unique_ptr<SampleLosses> sample_losses;  // null: the sampler needs none
  optim::LrSchedule schedule;
  SnapshotBarrier barrier;  // before the engine, which borrows it
  Engine engine;
  std::unique_ptr<Step> step;
  std::vector<std::unique_ptr<BetweenSteps>> between_steps;  // borrow the job
  PassageScores passage_scores;                // of Start
  std::optional<uint64_t> reference;           // checksum of the reference model, for methods that have one
  std::optional<uint64_t> masks;               // checksum of the masks of model.from, where the run trains a pruned model
  std::map<std::string, std::string> carried;  // files that came with model.from and go into every snapshot
  std::unique_ptr<parallel::FullTensorGather> assembly;
  std::unique_ptr<parallel::StateMap> state_map;     // over the step group
  std::unique_ptr<RemoteIslandHost> remote_islands;  // null unless this island is a separate world
  std::unique_ptr<BadSteps> bad_steps;
  RunProgress progress;
  BatchesAhead ahead;  // last, so that its threads end first
};

}  // namespace cairn::train
