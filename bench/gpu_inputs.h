#pragma once
#include <cstdint>
#include <string>

#include "bench/gpu_case.h"

namespace cairn::study {

// The files that both sides of a case read.
struct GpuInputs {
  std::string tokens;     // a token shard of llm.c: both read it front to back
  std::string tokenizer;  // as many tokens as the case's vocabulary has; nobody encodes with it
  std::string weights;    // safetensors in bf16: what Cairn starts from with kGpuSeed; empty: each side draws its own
};

inline constexpr int64_t kGpuSeed = 1;

// Writes them into a folder: drawn tokens (study/synthetic_tokens.h), enough for so many steps.
GpuInputs write_gpu_inputs(const GpuCase& one, int64_t steps, const std::string& folder);

}  // namespace cairn::study
