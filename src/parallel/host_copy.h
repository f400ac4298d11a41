#pragma once
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cairn::parallel {

// A tensor of a GPU that waits in host memory until it is needed again. Copies run beside what the GPU computes, in the order that its
// streams give them: the host waits for nothing, and memory is used again only by what comes after on the stream. A CPU imitates it.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor tensor);  // begins to copy it out
  ~HostCopy();                           // what comes next on the stream waits for copies that are under way
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = delete;
  // The GPU's memory may go: what comes next on the stream waits until the copy is there.
  void let_go();
  void fetch();       // begins to bring it back, where it was let go
  at::Tensor take();  // for what comes next on the stream; fetches it first

 private:
  at::Tensor here_, away_;  // on the device (undefined: let go), in host memory
  at::Device device_;
  std::unique_ptr<c10::Event> out_, back_;
};

}  // namespace cairn::parallel
