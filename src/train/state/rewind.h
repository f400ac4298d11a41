#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"

namespace cairn::train {

struct Job;

// The state of a job as of its last snapshot, kept in memory on its device: a run goes back to it without a disk, on every rank alike.
class Rewind {
 public:
  // Copies parameters, optimizer, sync and sampler state, and where the run stands.
  void keep(Job& job);
  // Puts them back, and moves the data on: the next step trains on the samples after those of step `bad_step`, which is left out with
  // all between. Only after keep.
  void back(Job& job, int64_t bad_step) const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<base::BookedMemory> booked_;
  int64_t steps_done_ = 0, tokens_done_ = 0, updates_skipped_ = 0;
};

}  // namespace cairn::train
