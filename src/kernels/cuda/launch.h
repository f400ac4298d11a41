// What the arguments of CUDA kernels have in common.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

// The element type behind the pointers of a launch. Kernels compute in fp32 in any case.
enum class Elements { fp32, bf16 };

constexpr int kAmaxWords = 32;  // partial amax values of a result; several, so that atomics do not collide

}  // namespace cairn::kernels
