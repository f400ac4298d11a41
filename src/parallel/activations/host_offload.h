#pragma once
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cairn::parallel {

// Activation offload: a GPU tensor that waits in pinned host memory until backward needs it. Copies run on side streams, ordered by events
// with the current stream; the host never waits, and freed device memory is reused only by later work on the stream. On a CPU it is a plain
// copy, so that tests run everywhere.
class HostOffload {
 public:
  explicit HostOffload(at::Tensor tensor);  // starts the copy to the host
  ~HostOffload();                           // later work on the stream waits for copies in flight
  HostOffload(HostOffload&&) = default;
  HostOffload& operator=(HostOffload&&) = delete;
  // Frees the device memory; later work on the stream waits until the copy is done.
  void release_device();
  void fetch();       // starts the copy back, if the device memory was freed
  at::Tensor take();  // the tensor on the device, for later work on the stream; fetches it if needed

 private:
  at::Tensor on_device_, on_host_;  // the device tensor is undefined after release_device
  at::Device device_;
  std::unique_ptr<c10::Event> out_, back_;
};

}  // namespace cairn::parallel
