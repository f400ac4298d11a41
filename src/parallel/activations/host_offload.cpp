#include "parallel/activations/host_offload.h"

#include <utility>

#include <c10/core/StreamGuard.h>

#include "base/memory_scope.h"
#include "kernels/aten.h"
#include "kernels/streams.h"

namespace cairn::parallel {
namespace {

// Copies on this stream, after all that was started on the current one. The event says when it is done.
std::unique_ptr<c10::Event> copy_beside(const at::Tensor& into, const at::Tensor& from, const at::Device& device,
                                        kernels::SideStream what) {
  const c10::Stream beside = kernels::side_stream(device, what);
  c10::Event before(device.type());
  before.record(kernels::current_stream(device));
  before.block(beside);
  const c10::StreamGuard on(beside);
  into.copy_(from, /*non_blocking=*/true);
  auto done = std::make_unique<c10::Event>(device.type());
  done->record(beside);
  return done;
}

}  // namespace

HostOffload::HostOffload(at::Tensor tensor) : on_device_(std::move(tensor)), device_(on_device_.device()) {
  on_host_ = at::empty_like(on_device_, at::TensorOptions().device(at::kCPU).pinned_memory(on_device_.is_cuda()));
  if (on_device_.is_cuda())
    out_ = copy_beside(on_host_, on_device_, device_, kernels::SideStream::to_host);
  else
    on_host_.copy_(on_device_);
}

HostOffload::~HostOffload() {
  if (out_) out_->block(kernels::current_stream(device_));
  if (back_) back_->block(kernels::current_stream(device_));
}

void HostOffload::release_device() {
  if (!on_device_.defined()) return;
  if (out_) out_->block(kernels::current_stream(device_));
  on_device_.reset();
}

void HostOffload::fetch() {
  if (on_device_.defined()) return;
  const base::MemoryScope purpose("inputs from the host");
  on_device_ = at::empty_like(on_host_, at::TensorOptions().device(device_).pinned_memory(false));
  if (on_device_.is_cuda())
    back_ = copy_beside(on_device_, on_host_, device_, kernels::SideStream::to_gpu);
  else
    on_device_.copy_(on_host_);
}

at::Tensor HostOffload::take() {
  fetch();
  if (back_) back_->block(kernels::current_stream(device_));
  return std::move(on_device_);
}

}  // namespace cairn::parallel
