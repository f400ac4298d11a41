#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "train/step.h"

namespace cairn::train {

// The numbers of a step on the host.
struct Reading {
  int64_t step = 0;
  double loss_sum = 0;  // over this rank's samples
  double gradient_norm = 0;
  std::vector<double> measures = {};  // sums over this rank's samples; empty if there are none
  std::optional<double> seconds =
      {};  // from the end of the previous step (or restart()) to the end of this one, by GPU events; empty for the first
};

// Brings the numbers of each step to the host without a wait inside the step. On a GPU they are copied after the step's kernels and read
// one step later; on the CPU they are available at once. The host waits for the first step only, to know when it ended. GPU events
// time later steps, because the host may read them much later.
class Meter {
 public:
  // `meanwhile` is called repeatedly while the host waits for the device, until it returns false (nothing left to do).
  explicit Meter(const at::Device& device, std::function<bool()> meanwhile = {});
  ~Meter();

  void add(int64_t step, const StepOutput& output);
  // The oldest reading that is available without waiting for the newest step; with `all`, also that of the newest step.
  std::optional<Reading> take(bool all);
  // The time of the next step begins here, after an evaluation or a save. All readings were taken.
  void restart();

 private:
  struct Pending;
  at::Device device_;
  std::function<bool()> meanwhile_;
  std::deque<Pending> pending_;
  std::unique_ptr<c10::Event> last_read_;  // where the time of the next step begins; null: nothing was read yet
};

// Bytes in use: reserved by the GPU's allocator, or resident in this process on the CPU.
int64_t memory_in_use(const at::Device& device);
// The peak bytes of tensors on a GPU, without what the allocator reserves beyond that; 0 on the CPU, where nothing counts it.
int64_t memory_of_tensors_most(const at::Device& device);

}  // namespace cairn::train
