#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu_case.h"
#include "bench/gpu_inputs.h"
#include "study/gpu_monitor.h"

namespace cairn::study {

// The result of one run, as far as it got before it failed or ran out of time.
struct GpuRun {
  std::string who;                                           // ours, fp8 (ours with fp8 linear layers), compiled, eager
  std::string fault = {};                                    // why it did not reach its end; empty: it did
  std::vector<std::pair<std::string, double>> startup = {};  // parts of the time to the end of the first step, in seconds
  double first_step_s = 0;           // from the start of the process to the end of the first step; 0: never came so far
  std::vector<double> losses = {};   // step by step
  int64_t tensor_bytes_most = 0;     // what tensors took at most, by the allocator's books
  int64_t allocator_bytes_most = 0;  // what the allocator had for them
  int64_t device_bytes_most = 0;     // what the device had less, seen from outside: context and libraries too
  int64_t steady_steps = 0;          // the last two thirds
  double steady_s = 0;
  double joules = 0, clock_mhz = 0;  // during those; 0: not known

  double tokens_per_s(const GpuCase& one) const { return steady_s > 0 ? static_cast<double>(steady_steps * one.tokens()) / steady_s : 0; }
};

// Where runs are made, and how long one may take.
struct GpuPlace {
  std::string device;   // cuda or cpu
  std::string program;  // Cairn itself
  std::string python;
  std::string scratch;
  int threads = 1;                     // on a CPU
  std::vector<std::string> sets = {};  // keys of our runs' recipe besides those of the case
  std::string kernels = {};            // a file for what the time of a step goes to; empty: it is not watched
};

// What the case decides is compared with the peer's, and is not to be changed.
void refuse_set_of_case(const std::string& set);

// Cairn by a recipe of plain bf16: weights, gradients and moments, updates rounded to the nearest, no clipping.
// With `fp8`, linear layers run in fp8.
GpuRun run_gpu_ours(const GpuCase& one, const GpuInputs& inputs, int64_t steps, const GpuPlace& place, const GpuMonitor& watch,
                    double limit_s, bool fp8);

// bench/gpu_peer.py.
GpuRun run_gpu_peer(const GpuCase& one, const GpuInputs& inputs, int64_t steps, const GpuPlace& place, const GpuMonitor& watch,
                    double limit_s, bool compiled);

// Large matrix products for some seconds on end: what this device comes to under load.
struct GpuCeiling {
  std::string fault = {};
  int64_t size = 0;  // of the matrices
  double tflops = 0, burst_tflops = 0;
  std::string device = {}, torch = {};
};
GpuCeiling measure_gpu_ceiling(const GpuPlace& place, double limit_s);

}  // namespace cairn::study
