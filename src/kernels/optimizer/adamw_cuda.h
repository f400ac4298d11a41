// AdamW on a GPU. A build without CUDA has these functions too; they return false.
#pragma once
#include <span>

namespace cairn::kernels {

struct AdamwPiece;
struct AdamwStep;

// Starts the updates on the current stream of their device and returns true; false if there is no kernel for one of these pieces.
bool adamw_on_cuda(std::span<const AdamwPiece> pieces, const AdamwStep& step);

}  // namespace cairn::kernels
