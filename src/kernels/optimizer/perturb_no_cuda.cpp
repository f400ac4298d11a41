// A build without CUDA has no directions on a GPU.
#include "kernels/optimizer/perturb_cuda.h"

namespace cairn::kernels {

bool perturb_on_cuda(const at::Tensor&, const at::Tensor&, const Direction&, int64_t, Noise) { return false; }
bool replay_on_cuda(const at::Tensor&, std::span<const Direction>, int64_t, float, float, Noise) { return false; }

}  // namespace cairn::kernels
