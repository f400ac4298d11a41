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

// What is known of a step once its numbers have reached the host.
struct Reading {
  int64_t step = 0;
  double loss_sum = 0;  // over this rank's samples
  double gradient_norm = 0;
  std::vector<double> measures = {};   // sums over this rank's samples; empty where it has none
  std::optional<double> seconds = {};  // from the end of the step before to its own, by the accelerator's clock; not of the first
};

// Brings the few numbers of each step to the host without making the host wait inside a step: on an accelerator they are copied
// behind the step's own work and read one step later; on the CPU they are there at once. The first step is waited for, so that the host
// knows when it ended; how long each later one took is the accelerator's to say, since the host may come to look much later.
class Meter {
 public:
  // `meanwhile` is called again and again while the device is at work; false: there is nothing else to do.
  explicit Meter(const at::Device& device, std::function<bool()> meanwhile = {});
  ~Meter();

  void add(int64_t step, const StepOutput& output);
  // The oldest reading that can be had without waiting for the newest step; with `all`, also that one.
  std::optional<Reading> take(bool all);

 private:
  struct Pending;
  at::Device device_;
  std::function<bool()> meanwhile_;
  std::deque<Pending> pending_;
  std::unique_ptr<c10::Event> last_read_;  // of the step whose reading was taken last; null: none was
};

// Bytes in use: of the device's allocator, or of this process on the CPU.
int64_t memory_in_use(const at::Device& device);
// The most that tensors ever took on an accelerator, which its allocator may have rounded up to more; on the CPU nobody counts: 0.
int64_t memory_of_tensors_most(const at::Device& device);

}  // namespace cairn::train
