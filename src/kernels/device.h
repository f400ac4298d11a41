#pragma once
#include <string>

#include <c10/core/Device.h>

namespace cairn::kernels {

// What --device names: "cpu", or "cuda", which is refused where this build or this machine cannot compute on a GPU.
at::Device device_from_name(const std::string& name);
bool can_use_cuda();
int64_t total_memory_bytes(const at::Device& gpu);  // all of its memory

// While one lives, whatever this process computes comes out with the same bits each time, or fails with a message that names what cannot.
// Only attention on a GPU has to choose: its gradients are else added up in any order. All that train in a process at a time must want the
// same.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  ~DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
};

}  // namespace cairn::kernels
