#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::study {

// How many times the peer's tokens/s, in bf16 and with fp8 linear layers, and how much of its memory.
struct GpuGoals {
  double bf16, fp8, memory;
};

// One model and batch of `cairn bench gpu`.
struct GpuCase {
  std::string name;
  int64_t vocab, embed, layers, heads, kv_heads, head_dim, mlp;
  bool tied;
  int64_t batch, length;  // of a step, in one piece
  int64_t steps;          // of the runs whose losses are compared
  double limit_s;         // for the whole case
  GpuGoals goals;         // against the compiled peer
  bool same_weights;      // ours are written to a file and read by the peer; else each draws its own

  static constexpr int64_t kWarmup = 10;  // steps over which the rate rises
  // A wide model at the rate of a narrow one jumps, and runs part from each other, whoever computes: each rounding grows from step to step.
  double learning_rate() const {
    const double wider = std::max(1.0, static_cast<double>(embed) / 768);
    return 3e-4 / (wider * wider);
  }

  int64_t tokens() const { return batch * length; }
  int64_t parameters() const;
  // Floating-point operations of one step: 6 for each token and weight of a matrix (the head counts once, a table that is only looked up
  // not at all), and three times the forward pass of causal attention, which sees half of all pairs.
  double flops() const;
};

const std::vector<GpuCase>& gpu_cases();

// Those that --case names: one, "qwen" for all four of them, or A, B and C where it is empty. Unknown names are refused.
std::vector<GpuCase> gpu_cases_named(const std::string& only);

}  // namespace cairn::study
