#pragma once
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"
#include "train/options.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// Finds bad steps, and stops a run that has too many of them. A step is bad if its loss or gradient norm is not finite, or is above
// train.spike_factor times its median over the last good steps. Every rank has one; all ranks reach the same decision.
class BadSteps {
 public:
  static constexpr int64_t kWindow = 64;  // good steps that the medians are taken over
  static constexpr int64_t kLeast = 8;    // good steps before a step can be a spike

  // `everyone` is borrowed: the ranks that must reach the same decision.
  BadSteps(comm::Group& everyone, const TrainOptions& options, double learning_rate);

  // Whether updates wait for approve() (train.on_bad_step = skip or rollback). Otherwise the recorder calls must_be_good() when the numbers
  // of a step have reached the host.
  bool before_update() const;
  // Sums the loss over all ranks and judges the step. Returns false if the step must not update. Collective; waits for the device.
  bool approve(int64_t loss_denominator, const at::Tensor& loss_sum, const at::Tensor& gradient_norm);
  // Why the last step was bad, in words; empty if it was good.
  const std::string& fault() const { return fault_; }
  // Throws `diverged` if the step is bad. The numbers are those of all ranks.
  void must_be_good(int64_t step, double loss, double gradient_norm);

  // Throws `diverged` if parameters are not finite on any rank: `not_finite` names one on this rank, or is empty. They are checked before
  // they are saved, because an update can overflow though its loss and gradient are finite. Collective.
  void parameters_must_be_finite(int64_t step, const std::string& not_finite);

  // Counts a refused step that is skipped; throws `diverged` after train.bad_steps_max in a row.
  void skipped(int64_t step);
  // Throws `diverged` if `step` is bad and the run was rolled back train.bad_steps_max times before.
  void may_roll_back(int64_t step, int64_t rollbacks) const;

  // The last good steps, for snapshots; empty without train.spike_factor. The tensors are the live ones: a loader writes into them.
  mesh::NamedTensors state();

 private:
  void judge(double loss, double gradient_norm);
  double median(int64_t column) const;
  [[noreturn]] void fail(const std::string& what) const;

  comm::Group& everyone_;
  const OnBadStep policy_;
  const double spike_factor_, learning_rate_;
  const int64_t bad_steps_max_;
  at::Tensor history_;  // [kWindow, 2] double: loss and gradient norm
  at::Tensor good_;     // [1] int64: good steps so far
  int64_t in_a_row_ = 0;
  std::string fault_;
};

}  // namespace cairn::train
