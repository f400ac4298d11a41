#pragma once
#include <string>

#include <c10/core/Device.h>

namespace cairn::kernels {

// The device that --device names: "cpu" or "cuda". Refuses "cuda" where this build or this machine cannot use a GPU.
at::Device device_from_name(const std::string& name);
bool can_use_cuda();
int64_t total_memory_bytes(const at::Device& gpu);
int64_t free_memory_bytes(const at::Device& gpu);  // what no process has allocated

// While one lives, this process computes deterministically: results are bitwise identical each time, and an operation without a
// deterministic form fails with its name (as torch.use_deterministic_algorithms). Only attention on a GPU has a choice: its gradients are
// otherwise summed in any order. The switch is global, so all runs of a process at a time must want the same.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  ~DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
};

}  // namespace cairn::kernels
