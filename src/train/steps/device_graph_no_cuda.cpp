// A build without CUDA has no graphs.
#include "train/steps/device_graph.h"

#include "base/check.h"

namespace cairn::train {

std::unique_ptr<DeviceGraph> make_cuda_graph() { base::fail_input("train.cuda_graph = true: this build has no CUDA: leave it out"); }

}  // namespace cairn::train
