#pragma once
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cairn::parallel {

// A tensor of a GPU that waits in host memory until it is needed again. Copies run beside what the GPU computes, in the order that its
// streams give them: the host waits for nothing, and memory is used again only by what comes after on the stream. A CPU imitates it.
class HostOffload {
 public:
  explicit HostOffload(at::Tensor tensor);  // begins to copy it out
  ~HostOffload();                           // what comes next on the stream waits for copies that are under way
  HostOffload(HostOffload&&) = default;
  HostOffload& operator=(HostOffload&&) = delete;
  // The GPU's memory may go: what comes next on the stream waits until the copy is there.
  void release_device();
  void fetch();       // begins to bring it back, where it was let go
  at::Tensor take();  // for what comes next on the stream; fetches it first

 private:
  at::Tensor on_device_, on_host_;  // on the device (undefined: let go), in host memory
  at::Device device_;
  std::unique_ptr<c10::Event> out_, back_;
};

}  // namespace cairn::parallel
