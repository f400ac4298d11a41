// What the launches of CUDA kernels have in common.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

// Which elements lie behind the pointers of a launch. Whatever it is, sums and products are fp32.
enum class Elements { fp32, bf16 };

constexpr int kAmaxWords = 32;  // the largest magnitude of a result is the largest of so many

}  // namespace cairn::kernels
