#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::train {

struct Job;

// While this object lives, passes read the global model of the sync rule (Sync::global_parameters) instead of this replica's own values.
// It does nothing if the rule keeps no such copy.
class ScopedGlobalParameters {
 public:
  explicit ScopedGlobalParameters(Job& job);
  ~ScopedGlobalParameters();
  ScopedGlobalParameters(const ScopedGlobalParameters&) = delete;
  ScopedGlobalParameters& operator=(const ScopedGlobalParameters&) = delete;

 private:
  Job& job_;
  std::vector<at::Tensor> own_;  // this replica's values, to be restored
};

}  // namespace cairn::train
