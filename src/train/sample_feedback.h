// Losses of single samples on their way from the steps to the sampler (data::Sampler::feedback).
//
//   step        each rank keeps the losses of its samples on its device               add(), nothing is waited for
//   flush       one all-reduce brings all of them to all ranks                        every sampler.flush_steps, before a snapshot
//   epoch ends  the sampler decides the next epoch; ranks compare a hash of it        advance_sampler()
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/batch_split.h"
#include "data/sampler.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Job;
struct StepOutput;

// The losses of the samples of the steps since the last flush. One per rank of a step group.
class SampleLosses {
 public:
  // `counts_once`: false on ranks whose losses others of the group have too (along tp). `group` is borrowed.
  SampleLosses(comm::Group& group, const data::SampleShares& shares, bool counts_once, int64_t flush_steps);

  // The samples of a step's global batch, and what this rank has of their losses. Does not wait for the device.
  void add(std::vector<int64_t> ids, const StepOutput& output);
  bool is_full() const { return static_cast<int64_t>(steps_.size()) >= flush_steps_; }
  // All samples since the last flush, in the order of steps and batches, without those that have no targets. Collective; identical on all
  // ranks.
  data::SampleFeedback flush();
  void drop() { steps_.clear(); }  // after a rollback

  // Seconds that the sampler's last decision took.
  void decided(double seconds) { decided_s_ = seconds; }
  double decided_s() const { return decided_s_; }

 private:
  struct KeptStep {
    std::vector<int64_t> ids;
    at::Tensor losses, counts;  // of this rank's samples; undefined: none
  };

  comm::Group& group_;
  const data::SampleShares shares_;
  const bool counts_once_;
  const int64_t flush_steps_;
  std::vector<KeptStep> steps_;
  double decided_s_ = 0;
};

// Keeps the losses of the step that was taken last, and flushes where enough steps are kept. Nothing without a sampler that needs them.
void keep_sample_losses(Job& job, std::vector<int64_t> ids, const StepOutput& output);
// Hands all losses so far to the sampler: before its state is saved. Collective.
void flush_sample_losses(Job& job);
// Lets the sampler decide, until the batch of the next step is known. The loader must not run. Collective; throws Error::diverged where
// ranks would draw different samples.
void advance_sampler(Job& job);
// What the sampler says of the epoch that `step` begins, for the metrics and in one line of the log; empty within an epoch.
std::vector<std::pair<std::string, double>> epoch_metrics(Job& job, int64_t step);

}  // namespace cairn::train
