#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/progress.h"
#include "base/tensorboard.h"
#include "sync/sync.h"
#include "train/evaluate.h"
#include "train/report/meter.h"
#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// What the host knows of a step while its numbers may still be on the device.
struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;            // of the step, over all ranks
  int64_t loss_denominator = 0;  // the loss of the step group is a mean over so many tokens, or samples
  int64_t tokens_done = 0;       // of the run, including this step
  int64_t batch = 0;             // the index of its batch in the sampler's order, from 0
  uint64_t samples = 0;          // checksum of the ids of that batch
  double learning_rate = 0;
  double snapshot_s = 0;  // seconds that training has waited for saves since the previous step was recorded
  HeldOut held_out = {};
  sync::StepMetrics metrics = {};  // of the sync rules and the step
  std::string fault = {};          // why its update was skipped; empty if it was not
};

// Writes the run directory (recipe.toml, plan.json, metrics.jsonl, TensorBoard events, ledger.json, trace.json, report.html) and the
// progress line. Every rank has one, because losses are summed over the step group; only the first rank of the group writes.
class RunRecorder {
 public:
  RunRecorder(comm::World& world, Job& job, const Start& start);
  ~RunRecorder();

  // Records a finished step. Returns whether any rank wants to stop. Collective. Throws `diverged` if a bad step ends the run
  // (bad_steps.h).
  bool step(const StepRecord& facts, const StepOutput& output, bool wants_to_stop);
  // The run was rolled back to job.progress.steps_done: removes the records of later steps. Collective.
  void rolled_back();
  // Records the steps that are still pending, then writes the files that are written once. Collective.
  void finish(bool stopped);

  const Result& result() const { return result_; }

 private:
  bool take(const Reading* reading, bool wants_to_stop);
  void write(const StepRecord& facts, const Reading& reading, double loss, const std::vector<double>& measures);

  comm::World& world_;
  Job& job_;
  const Start start_;
  Meter meter_;
  std::deque<StepRecord> waiting_;           // steps whose numbers have not reached the host
  const std::vector<std::string> measured_;  // names of the objective's measures
  std::unique_ptr<base::Metrics> metrics_;
  std::unique_ptr<base::TensorBoard> tensorboard_;
  std::unique_ptr<base::Progress> progress_;
  double startup_s_ = 0;     // from the start of the process to the first step
  double last_s_ = 0;        // wall clock when the previous step was recorded
  double tokens_per_s_ = 0;  // smoothed, for the estimate of the time left
  Result result_;
};

}  // namespace cairn::train
