#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "proofs/layout_run.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

// Steps at the end of a run, into whose times its end falls: what is still under way, and losses that are read a step late.
constexpr int64_t kLastSteps = 3;

// Training on the GPU by this program, as anybody would start it.
struct GpuTraining {
  Assignments sets;  // without train.steps
  int64_t steps = 0;
  std::vector<std::string> arguments = {};  // besides: --nproc 2
  double limit_s = 120;
};

// What a run wrote down.
struct GpuTrained {
  std::vector<double> losses, gradient_norms;                       // step by step
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();  // the last
  std::vector<double> ends_s;                                       // when each step was over, after the first began
  int64_t tensor_bytes_most = 0;                                    // on the GPU, of the process of rank 0
  std::optional<double> busy = {};  // as GpuMonitor has it, over the last two thirds of the steps but for the last ones; none: not known
  double waited_s = 0;              // for other islands
  std::vector<double> saves_s;      // how long each save held up training; not of a save at the end
  std::string fault;                // how it failed, or what it did not come to; empty: it went through

  bool lacked_memory() const { return fault.find("out of memory") != std::string::npos; }
  double step_s() const;  // the median of the last two thirds
};
// `name` is that of its folder in the proof's scratch space. Says what it does.
GpuTrained train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training);
// The same, and whatever fails is thrown.
GpuTrained must_train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training);

// A decoder that computes in bf16, on built-in stories, without evaluation and snapshots.
struct GpuDecoder {
  int64_t embed = 2048, layers = 16, heads = 16, kv_heads = 16, mlp = 8192;
  int64_t batch = 8, length = 1024;
  bool wide_state = false;  // weights, gradients and moments in fp32, as several ranks need it, rather than in bf16
};
Assignments gpu_decoder(const ProofOptions& options, const GpuDecoder& shape);

// Seconds that the GPU takes for the work, on the current stream: the least of several rounds after one that is not counted.
double gpu_seconds(const std::function<void()>& work, int times = 10);

}  // namespace cairn::study
