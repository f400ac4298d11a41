// A run on one rank, between train::build and the end of the loop.
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
#include "data/batch_split.h"
#include "data/loader.h"
#include "data/open.h"
#include "data/sampler.h"
#include "kernels/device.h"
#include "optim/schedule.h"
#include "parallel/plan.h"
#include "parallel/state/full_tensor_gather.h"
#include "train/bad_steps.h"
#include "train/engine.h"
#include "train/islands/remote_islands.h"
#include "train/report/kernel_report.h"
#include "train/report/memory_report.h"
#include "train/settings.h"
#include "train/step.h"

namespace cairn::train {

// What is configured: fixed once build() has returned.
struct RunConfig {
  Settings settings;
  std::string recipe_toml;  // resolved, each value with its origin
  parallel::Plan plan;
  at::Device device{at::kCPU};
  std::filesystem::path out;  // the run directory of this rank's step group; empty: nothing is written
  bool writes = false;        // this rank keeps that directory
};

// Which samples of a global batch this rank and its step group (Engine::step_group) have. Ranks that share a sample, along tp and cp,
// have the same share.
struct SampleShares {
  int data_rank = 0, data_ranks = 1;               // this rank's share of the samples of its world
  int step_group_first = 0, step_group_ranks = 1;  // the shares of its step group
  int island = 0, islands = 1;                     // of islands that are separate worlds
  double data_share = 1;                           // 1 / the ranks that have the same samples: they count them once together

  data::BatchRange samples_of(int64_t count, int rank) const;  // the samples of a step that the rank with share `rank` has
};

// What measures the run.
struct Instruments {
  std::unique_ptr<base::Trace> trace;
  std::unique_ptr<KernelReport> kernel_report;  // where log.kernels asks for it
  std::unique_ptr<MemoryReport> memory_report;  // where log.memory asks for it
  std::unique_ptr<base::MemoryTags> memory;     // bytes by purpose, booked where they are allocated
  std::vector<base::BookedMemory> booked;
  std::vector<std::pair<std::string, double>> startup;  // seconds that each part of build() took
};

// Where the run stands. A snapshot restores all of it.
struct RunProgress {
  int64_t steps_done = 0;
  int64_t tokens_done = 0;
  double seconds_done = 0;
  int64_t updates_skipped = 0;  // of the steps done
  int64_t rollbacks = 0;
  int64_t batches_passed = 0;  // left out by rollbacks: step s trains on the sampler's batch s + batches_passed
};

// What runs, with its configuration and progress. One per rank; it must not move once its loader is started.
struct Job {
  RunConfig config;
  SampleShares shares;
  Instruments instruments;                                       // before all that it counts
  std::unique_ptr<kernels::DeterministicAlgorithms> repeatable;  // where train.deterministic asks for it
  data::OpenedData data;
  data::Subset subset;  // of the training samples
  std::unique_ptr<data::Sampler> sampler;
  optim::Schedule schedule;
  Engine engine;
  std::unique_ptr<Step> step;
  std::optional<uint64_t> reference;           // checksum of the frozen weights that the step compares with, if it does
  std::map<std::string, std::string> carried;  // files that came with model.from and go into every snapshot
  std::unique_ptr<parallel::FullTensorGather> assembly;
  std::unique_ptr<RemoteIslandHost> remote_islands;  // where this island is a separate world
  std::unique_ptr<BadSteps> bad_steps;
  RunProgress progress;
  std::unique_ptr<data::Loader> loader;  // last, so that its thread ends first
};

}  // namespace cairn::train
