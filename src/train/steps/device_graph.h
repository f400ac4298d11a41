#pragma once
#include <functional>
#include <memory>

namespace cairn::train {

// A CUDA graph of the work that this thread enqueues: captured once, replayed any number of times. An interface, so that tests on a CPU
// can replace it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Runs `work` on the host and captures its kernels; the device does not run them yet. Tensors that `work` allocates keep their addresses
  // as long as this object lives.
  virtual void capture(const std::function<void()>& work) = 0;
  virtual void replay() = 0;
};

std::unique_ptr<DeviceGraph> make_cuda_graph();

}  // namespace cairn::train
