#pragma once
#include <functional>
#include <memory>

namespace cairn::train {

// What this thread starts on its device, recorded once and then started as a whole, as often as wanted.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Runs `work` on the host; on the device nothing happens yet. Tensors that it makes keep their places, for as long as this lives.
  virtual void capture(const std::function<void()>& work) = 0;
  virtual void replay() = 0;
};

std::unique_ptr<DeviceGraph> make_cuda_graph();

}  // namespace cairn::train
