#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "base/clock.h"
#include "base/memory_tags.h"
#include "base/recipe.h"
#include "base/trace.h"
#include "data/batch_split.h"
#include "data/loader.h"
#include "data/open.h"
#include "data/sampler.h"
#include "kernels/device.h"
#include "optim/lr_schedule.h"
#include "parallel/plan.h"
#include "parallel/state/full_tensor_gather.h"
#include "train/bad_steps.h"
#include "train/engine.h"
#include "train/report/kernel_report.h"
#include "train/report/memory_report.h"
#include "train/settings.h"
#include "train/start.h"
#include "train/step.h"

namespace cairn::comm {
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::train {

// A recipe turned into objects: all that the loop works with, on one rank.
struct Job {
  Settings settings;
  std::string recipe_toml;  // resolved, each value with its origin
  parallel::Plan plan;
  at::Device device{at::kCPU};
  std::unique_ptr<kernels::DeterministicAlgorithms> repeatable;  // where it is asked for
  data::OpenedData data;
  data::Subset subset;  // of the training samples
  std::unique_ptr<data::Sampler> sampler;
  optim::LrSchedule schedule;
  std::unique_ptr<base::Trace> trace;
  std::unique_ptr<KernelReport> kernel_report;  // where it is asked for
  std::unique_ptr<MemoryReport> memory_report;  // where it is asked for; before all that it counts
  std::unique_ptr<base::MemoryTags> memory;     // bytes by purpose, booked where they are allocated
  std::vector<base::BookedMemory> booked;
  Engine engine;
  std::unique_ptr<Step> step;
  std::optional<uint64_t> reference;                           // the checksum of the frozen weights that the step compares with, if it does
  std::map<std::string, std::string> carried;                  // files that came with model.from and go into every snapshot
  std::unique_ptr<parallel::FullTensorGather> assembly;        // puts whole parameters together
  int data_rank = 0, data_ranks = 1;                           // which share of the samples this rank has
  int step_group_first = 0, step_group_ranks = 1;              // which of these shares the company (Engine::company) has
  data::BatchRange samples_of(int64_t count, int rank) const;  // the samples of a step that a rank has, of those that share them out
  double data_share = 1;                                       // of its own: ranks that have the same samples count them together once
  std::filesystem::path out;                                   // the run directory of its company; empty: nothing is written
  bool writes = false;                                         // this rank keeps the run directory of its company

  // Where the run stands; a snapshot restores these.
  int64_t steps_done = 0;
  int64_t tokens_done = 0;
  double seconds_done = 0;
  std::vector<std::pair<std::string, double>> startup;  // what building it took, part by part, in seconds
  int64_t updates_skipped = 0;                          // of the steps done
  int64_t rollbacks = 0;
  int64_t batches_passed = 0;  // left out by rollbacks: step s trains on the sampler's batch s + batches_passed

  std::unique_ptr<RemoteIslandHost> remote;  // where this island is started by itself
  std::unique_ptr<BadSteps> bad_steps;

  std::unique_ptr<data::Loader> loader;  // last, so that its thread ends first
};

// Reads the recipe, lays out the plan, builds model, data, optimizer and sync, and restores the newest snapshot where asked to.
std::unique_ptr<Job> build(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset);

// This rank's share of the batch of `step` (from 1).
mesh::Batch make_batch(const Job& job, int64_t step);

// Starts, or starts again, the thread that makes the batches after steps_done.
void start_loader(Job& job);

// A parameter as the optimizer sees it.
optim::ParameterPiece make_piece(const model::Parameter& of, at::Tensor parameter, at::Tensor gradient);

// Starting values of one parameter, whole.
void start_values(const Job& job, size_t parameter, const at::Tensor& whole);

// The plan that these settings make on so many ranks. Refuses what cannot work.
parallel::Plan make_plan(const Settings& settings, int ranks);

}  // namespace cairn::train
