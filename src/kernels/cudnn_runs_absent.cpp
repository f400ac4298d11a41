// For builds without cuDNN's headers.
#include "kernels/cudnn_runs.h"

namespace cairn::kernels {

bool has_cudnn_runs() { return false; }

std::optional<RunsAttended> cudnn_runs(const RunsToAttend& /*runs*/) { return std::nullopt; }

std::optional<RunGradients> cudnn_run_gradients(const RunsToAttend& /*runs*/, const at::Tensor& /*dout*/,
                                                const RunsAttended& /*attended*/) {
  return std::nullopt;
}

}  // namespace cairn::kernels
