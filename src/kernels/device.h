#pragma once
#include <string>

#include <c10/core/Device.h>

namespace cairn::kernels {

// What --device names: "cpu", or "cuda", which is refused where this build or this machine cannot compute on a GPU.
at::Device device_called(const std::string& name);
bool can_use_cuda();
int64_t bytes_of(const at::Device& gpu);  // all of its memory

// While one lives, whatever this process computes comes out with the same bits each time, or fails with a message that names what cannot.
// Only attention on a GPU has to choose: its gradients are else added up in any order. All that train in a process at a time must want the
// same.
class RepeatableBits {
 public:
  RepeatableBits();
  ~RepeatableBits();
  RepeatableBits(const RepeatableBits&) = delete;
  RepeatableBits& operator=(const RepeatableBits&) = delete;
};

}  // namespace cairn::kernels
