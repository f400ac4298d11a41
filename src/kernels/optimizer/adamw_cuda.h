// The seam between the dispatch of AdamW and its CUDA kernel, which a build without CUDA answers with "no".
#pragma once
#include <span>

namespace cairn::kernels {

struct AdamwPiece;
struct AdamwStep;

// Starts the updates on the current stream of their device and returns true; false if there is no kernel for one of these pieces.
bool adamw_on_cuda(std::span<const AdamwPiece> pieces, const AdamwStep& step);

}  // namespace cairn::kernels
