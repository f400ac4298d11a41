#pragma once
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::train {

struct Job;

// For as long as it lives, passes read the model that the sync calls agreed on (Sync::agreed) in place of this replica's own values.
// Nothing happens where these are the model.
class AsAgreed {
 public:
  explicit AsAgreed(Job& job);
  ~AsAgreed();
  AsAgreed(const AsAgreed&) = delete;
  AsAgreed& operator=(const AsAgreed&) = delete;

 private:
  Job& job_;
  std::vector<at::Tensor> own_;  // what stood in the parameters
};

}  // namespace cairn::train
