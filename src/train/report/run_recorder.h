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

// What is known of a step on the host while its numbers may still be on the device.
struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;            // of the step, over all ranks
  int64_t loss_denominator = 0;  // what the company's loss is a mean over
  int64_t tokens_done = 0;       // of the run, up to its end
  int64_t batch = 0;             // which of the sampler's batches, from 0
  uint64_t samples = 0;          // checksum of the ids of that batch
  double learning_rate = 0;
  double snapshot_s = 0;  // that saving held up training since the step before was booked
  HeldOut held_out = {};
  sync::StepMetrics metrics = {};  // of the sync rules and the step
  std::string fault = {};        // why its update was skipped; empty: it was not
};

// Keeps the run directory: recipe.toml, plan.json, metrics.jsonl, TensorBoard events, ledger.json, trace.json, report.html; and the
// progress line. Lives on every rank, since losses are summed over the company; only its first writes.
class RunRecorder {
 public:
  RunRecorder(comm::World& world, Job& job, const Start& start);
  ~RunRecorder();

  // Books a finished step, and tells whether any rank wants to stop. Collective. Throws `diverged` where a bad
  // step ends the run (bad_steps.h).
  bool step(const StepRecord& facts, const StepOutput& output, bool wants_to_stop);
  // The run has gone back to job.progress.steps_done: what was booked of later steps goes. Collective.
  void rolled_back();
  // Everything that is still outstanding, then the files that are written once. Collective.
  void finish(bool stopped);

  const Result& result() const { return result_; }

 private:
  bool take(const Reading* reading, bool wants_to_stop);
  void write(const StepRecord& facts, const Reading& reading, double loss, const std::vector<double>& measures);

  comm::World& world_;
  Job& job_;
  const Start start_;
  Meter meter_;
  std::deque<StepRecord> waiting_;           // steps whose numbers have not come yet
  const std::vector<std::string> measured_;  // names of what the objective measures
  std::unique_ptr<base::Metrics> metrics_;
  std::unique_ptr<base::TensorBoard> tensorboard_;
  std::unique_ptr<base::Progress> progress_;
  double startup_s_ = 0;     // from the start of the process to the first step
  double last_s_ = 0;        // on the wall clock: when the step before was booked
  double tokens_per_s_ = 0;  // smoothed, for the time left
  Result result_;
};

}  // namespace cairn::train
