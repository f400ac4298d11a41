#include "train/islands/scoped_global_parameters.h"

#include "kernels/aten.h"
#include "train/build.h"

namespace cairn::train {

ScopedGlobalParameters::ScopedGlobalParameters(Job& job) : job_(job) {
  const std::vector<at::Tensor> global = job.engine.sync->global_parameters();
  if (!global.empty()) job.engine.store->wait_for_gathers();
  for (size_t i = 0; i < global.size(); ++i) {
    const at::Tensor& parameter = job.engine.trained.values[i].tensor;
    own_.push_back(parameter.clone());
    parameter.copy_(global[i].view(parameter.sizes()));
  }
  if (!own_.empty()) job.engine.store->updated();
}

ScopedGlobalParameters::~ScopedGlobalParameters() {
  if (own_.empty()) return;
  for (size_t i = 0; i < own_.size(); ++i) job_.engine.trained.values[i].tensor.copy_(own_[i]);
  job_.engine.store->updated();
}

}  // namespace cairn::train
