#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::train {

struct Job;

// For as long as it lives, passes read the model that the sync calls agreed on (Sync::agreed) in place of this replica's own values.
// Nothing happens where these are the model.
class ScopedGlobalParameters {
 public:
  explicit ScopedGlobalParameters(Job& job);
  ~ScopedGlobalParameters();
  ScopedGlobalParameters(const ScopedGlobalParameters&) = delete;
  ScopedGlobalParameters& operator=(const ScopedGlobalParameters&) = delete;

 private:
  Job& job_;
  std::vector<at::Tensor> own_;  // what stood in the parameters
};

}  // namespace cairn::train
