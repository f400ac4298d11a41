#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log_file.h"
#include "base/metrics.h"
#include "base/progress.h"
#include "base/tensorboard.h"
#include "sync/sync.h"
#include "train/evaluate.h"
#include "train/report/meter.h"
#include "train/report/rank_times.h"
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
  int64_t positions = 0;         // tokens that the step group computed
  double flops = 0;              // of the step group; 0: as positions and data.length say
  int64_t tokens_done = 0;       // of the run, including this step
  int64_t batch = 0;             // the index of its batch in the sampler's order, from 0
  uint64_t samples = 0;          // checksum of the ids of that batch
  double learning_rate = 0;
  double data_wait_s = 0;          // seconds that the step waited for its batch
  double snapshot_s = 0;           // seconds that training has waited for saves since the previous step was recorded
  bool evaluated = false;          // held_out() follows
  double paused_s = 0;             // set by the recorder (paused_in_step)
  sync::StepMetrics metrics = {};  // of the sync rules and the step
  std::string plan = {};           // of the step, as JSON; empty: there is none
  std::string fault = {};          // why its update was skipped; empty if it was not
};

// Writes the run directory (recipe.toml, plan.json, metrics.jsonl, TensorBoard events, ledger.json, trace.json, report.html) and the
// progress line. Every rank has one, because losses are summed over the step group; only the first rank of the group writes. After the
// start, a file that cannot be written is a warning: it does not end the run.
class RunRecorder {
 public:
  RunRecorder(comm::World& world, Job& job, const Start& start);  // collective
  ~RunRecorder();

  // Records a finished step. Returns whether any rank wants to stop. Collective. On a GPU its numbers arrive one step later, or with
  // settle(). Throws `diverged` if a bad step ends the run (bad_steps.h).
  bool step(const StepRecord& facts, const StepOutput& output, bool wants_to_stop);
  // Waits for the numbers of all steps so far and judges them: what is saved after this call comes from a good step. Collective.
  void settle();
  // The evaluation of the step that was recorded last, after settle().
  void held_out(const HeldOut& found);
  // How much of an evaluation is done, from 0 to 1, for the progress line.
  void evaluating(double done);
  // The next step begins here: the time since the last one belongs to an evaluation or a save.
  void after_pause();
  // So much of the step that is recorded next was no part of it, of which this rank waited so long for others.
  void paused_in_step(double seconds, std::chrono::nanoseconds waited);
  // The run was rolled back to job.progress.steps_done: removes the records of later steps. Collective.
  void rolled_back();
  // Records the steps that are still pending, then writes the files that are written once. Collective.
  void finish(bool stopped);

  const Result& result() const { return result_; }

 private:
  // The numbers of a step after reduction.
  struct StepNumbers {
    double loss = 0, gradient_norm = 0, step_s = 0, comm_wait_s = 0, tokens_per_s = 0;
    std::optional<double> mfu = {};  // model FLOPs utilisation, 0 to 1
    std::vector<double> measures = {};
    int64_t memory = 0;
  };

  bool take(const Reading* reading, bool wants_to_stop, double own_s);
  void write(const StepRecord& facts, const Reading& reading, double loss, std::vector<double> measures);
  void write_row(const StepRecord& facts, const StepNumbers& numbers);
  void write_tensorboard(const StepRecord& facts, const StepNumbers& numbers);
  void show(const StepRecord& facts, const StepNumbers& numbers);
  double seconds_left(int64_t step) const;
  void open_metrics();

  comm::World& world_;
  Job& job_;
  const Start start_;
  Meter meter_;
  std::deque<StepRecord> waiting_;           // steps whose numbers have not reached the host
  const std::vector<std::string> measured_;  // names of the objective's measures
  std::unique_ptr<base::Metrics> metrics_;
  std::unique_ptr<base::LogFile> plans_;  // of steps (step_plan/kept_plans.h); null: there are none, or others write
  std::unique_ptr<base::TensorBoard> tensorboard_;
  std::unique_ptr<base::Progress> progress_;
  RankTimes rank_times_;
  std::vector<double> rank_seconds_;             // of the last step: each rank's own time
  double flops_per_token_ = 0, peak_flops_ = 0;  // of training; of all ranks of the step group. 0: not measured
  double startup_s_ = 0;                         // from the start of the process to the first step
  double last_s_ = 0;                            // wall clock when the previous step was recorded
  std::chrono::nanoseconds last_waited_{0};      // the world's waits until then
  double steps_per_s_ = 0, tokens_per_s_ = 0;    // smoothed, for the estimate of the time left
  double pause_s_ = 0;                           // of the last evaluation and save
  double step_pause_s_ = 0;                      // of the step that is recorded next
  Result result_;
};

}  // namespace cairn::train
