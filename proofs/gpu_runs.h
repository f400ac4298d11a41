#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proofs/layout_run.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

// Training on the GPU by this program, as anybody would start it.
struct GpuTraining {
  Assignments sets;
  std::vector<std::string> arguments = {};  // besides: --nproc 2
  double limit_s = 120;
};

// What a run wrote down.
struct GpuTrained {
  std::vector<double> losses;
  std::vector<double> ends_s;     // when each step was over, after the first began
  int64_t tensor_bytes_most = 0;  // on the GPU, of the process of rank 0
  double busy = 0;                // share of the last two thirds of the steps in which the GPU had something to do, whoever asked for it
  std::string fault;              // how it failed; empty: it did not

  double step_s() const;  // the median of the last two thirds
};
// `name` is that of its folder in the proof's scratch space. Says what it does.
GpuTrained train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training);
// The same, and whatever fails is thrown.
GpuTrained must_train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training);

// A decoder that computes in bf16, on built-in stories, without evaluation and snapshots.
struct GpuDecoder {
  int64_t embed = 2048, layers = 16, heads = 16, kv_heads = 16, mlp = 8192;
  int64_t batch = 8, length = 1024, steps = 12;
  bool wide_state = false;  // weights, gradients and moments in fp32, as several ranks need it, rather than in bf16
};
Assignments gpu_decoder(const ProofOptions& options, const GpuDecoder& shape);

// Seconds that the GPU takes for the work, on the current stream: the least of several rounds after one that is not counted.
double gpu_seconds(const std::function<void()>& work, int times = 10);

}  // namespace cairn::study
