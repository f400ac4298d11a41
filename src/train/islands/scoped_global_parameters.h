#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::train {

struct Job;

// While this object lives, passes read other values than this replica's own: those of the sync rule's global model
// (Sync::global_parameters), or these, by index in Engine::trained. Empty: nothing changes.
class ScopedGlobalParameters {
 public:
  explicit ScopedGlobalParameters(Job& job);
  ScopedGlobalParameters(Job& job, const std::vector<at::Tensor>& values);
  ~ScopedGlobalParameters();
  ScopedGlobalParameters(const ScopedGlobalParameters&) = delete;
  ScopedGlobalParameters& operator=(const ScopedGlobalParameters&) = delete;

 private:
  Job& job_;
  std::vector<at::Tensor> own_;  // this replica's values, to be restored
};

}  // namespace cairn::train
