#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/memory_tags.h"
#include "optim/active_set.h"

namespace cairn::train {

struct Job;

// A copy of the job's state at its last snapshot, in memory on the job's device. A rollback (train.on_bad_step) restores it without reading
// from disk. Every rank has one.
class Rewind {
 public:
  // Copies parameters, optimizer, sync and sampler state, and the progress of the run.
  void keep(Job& job);
  // Restores them, and skips data: the next step trains on the batch after that of step `bad_step`. Call keep() first.
  void back(Job& job, int64_t bad_step) const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<base::BookedMemory> booked_;
  optim::ActiveSet active_;
  int64_t steps_done_ = 0, tokens_done_ = 0, updates_skipped_ = 0;
};

}  // namespace cairn::train
