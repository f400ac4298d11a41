// A build without CUDA has no AdamW kernel for a GPU.
#include "kernels/adamw.h"

#include "kernels/optimizer/adamw_cuda.h"

namespace cairn::kernels {

bool has_cuda_kernels() { return false; }

bool adamw_on_cuda(std::span<const AdamwPiece>, const AdamwStep&) { return false; }

}  // namespace cairn::kernels
