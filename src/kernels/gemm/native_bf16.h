#pragma once

namespace cairn::kernels {

// Whether this processor multiplies bf16 matrices by itself (AVX-512 BF16 or AMX on x86-64, BF16 on AArch64). Elsewhere libtorch emulates
// it in one thread, and widening to fp32 for its BLAS is many times as fast.
bool has_native_bf16();

}  // namespace cairn::kernels
