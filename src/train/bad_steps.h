#pragma once
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct TrainOptions;

// Tells a bad step from a good one, alike on all ranks, and stops a run that has too many: a loss or gradient norm that is not finite, or
// that lies above train.spike_factor times its median over the last good steps. One per rank.
class BadSteps {
 public:
  static constexpr int64_t kWindow = 64;  // good steps that the medians are over
  static constexpr int64_t kLeast = 8;    // of them before anything is called a spike

  // `everyone` is borrowed: the ranks that must decide alike.
  BadSteps(comm::Group& everyone, const TrainOptions& options, double learning_rate);

  // Whether updates wait for approve: skip and rollback. Otherwise must_be_good is asked when a step's numbers have come.
  bool before_update() const;
  // Sums the loss over all ranks and judges the step; false: it must not update. Collective; waits for the device.
  bool approve(int64_t loss_denominator, const at::Tensor& loss_sum, const at::Tensor& gradient_norm);
  // What was wrong with the step that approve refused, in words; empty where nothing was.
  const std::string& fault() const { return fault_; }
  // Throws `diverged` where the step is bad. The numbers are over all ranks.
  void must_be_good(int64_t step, double loss, double gradient_norm);

  // Counts a refused step that is skipped; throws `diverged` after train.bad_steps_max in a row.
  void skipped(int64_t step);
  // Throws `diverged` where the run was rolled back train.bad_steps_max times and `step` is bad again.
  void may_roll_back(int64_t step, int64_t rollbacks) const;

  // The last good steps, for snapshots, where spikes are looked for. The tensors are its own: a loader writes into them.
  mesh::NamedTensors state();

 private:
  void judge(double loss, double gradient_norm);
  double median(int64_t column) const;
  [[noreturn]] void fail(const std::string& what) const;

  comm::Group& everyone_;
  const std::string policy_;
  const double spike_factor_, learning_rate_;
  const int64_t bad_steps_max_;
  at::Tensor history_;  // [kWindow, 2] double: loss and gradient norm
  at::Tensor good_;     // [1] int64: good steps so far
  int64_t in_a_row_ = 0;
  std::string fault_;
};

}  // namespace cairn::train
