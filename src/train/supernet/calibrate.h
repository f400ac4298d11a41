// The statistics of the batch norms of a subnet. Those that training keeps are the whole network's.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model.h"
#include "train/evaluate.h"

namespace cairn::train {

struct Job;

// While it lives, passes of the job compute this subnet, and its batch norms have the statistics of the job's first training samples under
// the present weights: mean and variance over all their values. Then everything is as before. Collective. Models without batch norm need
// no samples.
class ScopedSubnet {
 public:
  ScopedSubnet(Job& job, const model::Subnet& subnet, int64_t calibration_samples);
  ~ScopedSubnet();
  ScopedSubnet(const ScopedSubnet&) = delete;
  ScopedSubnet& operator=(const ScopedSubnet&) = delete;

 private:
  Job& job_;
  model::Subnet subnet_;
  model::Buffers kept_;
};

// Adds what is measured of a few fixed subnets (the smallest, and two drawn once) to an evaluation of a supernet: "smallest_accuracy",
// "medium_1_loss". Does nothing for other models. Collective.
void evaluate_subnets(Job& job, HeldOut& found);

}  // namespace cairn::train
