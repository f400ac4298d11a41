// For builds without cuDNN's headers.
#include "kernels/cudnn_runs.h"

namespace cairn::kernels {

bool has_cudnn_runs() { return false; }

std::optional<Attended> cudnn_runs(const RunsToAttend& /*runs*/) { return std::nullopt; }

std::optional<AttentionGradients> cudnn_run_gradients(const RunsToAttend& /*runs*/, const at::Tensor& /*dout*/,
                                                      const Attended& /*attended*/) {
  return std::nullopt;
}

}  // namespace cairn::kernels
