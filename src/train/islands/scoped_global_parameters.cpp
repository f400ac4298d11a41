#include "train/islands/scoped_global_parameters.h"

#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "train/build.h"

namespace cairn::train {

ScopedGlobalParameters::ScopedGlobalParameters(Job& job) : ScopedGlobalParameters(job, job.engine.sync->global_parameters()) {}

ScopedGlobalParameters::ScopedGlobalParameters(Job& job, const std::vector<at::Tensor>& values) : job_(job) {
  if (!values.empty()) job.engine.store->wait_for_gathers();
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& parameter = job.engine.trained.values[i].tensor;
    own_.push_back(parameter.clone());
    mesh::before_write(job.engine.trained.barrier, parameter);
    parameter.copy_(values[i].view(parameter.sizes()));
  }
  if (!own_.empty()) job.engine.store->updated();
}

ScopedGlobalParameters::~ScopedGlobalParameters() {
  if (own_.empty()) return;
  for (size_t i = 0; i < own_.size(); ++i) {
    const at::Tensor& parameter = job_.engine.trained.values[i].tensor;
    mesh::before_write(job_.engine.trained.barrier, parameter);
    parameter.copy_(own_[i]);
  }
  job_.engine.store->updated();
}

}  // namespace cairn::train
