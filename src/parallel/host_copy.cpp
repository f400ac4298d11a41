#include "parallel/host_copy.h"

#include <utility>

#include <c10/core/StreamGuard.h>

#include "base/memory_scope.h"
#include "kernels/aten.h"
#include "kernels/streams.h"

namespace cairn::parallel {
namespace {

// Copies on this stream, after all that was started on the current one. The event says when it is done.
std::unique_ptr<c10::Event> copy_beside(const at::Tensor& into, const at::Tensor& from, const at::Device& device, kernels::Beside what) {
  const c10::Stream beside = kernels::stream_beside(device, what);
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

HostCopy::HostCopy(at::Tensor tensor) : here_(std::move(tensor)), device_(here_.device()) {
  away_ = at::empty_like(here_, at::TensorOptions().device(at::kCPU).pinned_memory(here_.is_cuda()));
  if (here_.is_cuda())
    out_ = copy_beside(away_, here_, device_, kernels::Beside::to_host);
  else
    away_.copy_(here_);
}

HostCopy::~HostCopy() {
  if (out_) out_->block(kernels::current_stream(device_));
  if (back_) back_->block(kernels::current_stream(device_));
}

void HostCopy::let_go() {
  if (!here_.defined()) return;
  if (out_) out_->block(kernels::current_stream(device_));
  here_.reset();
}

void HostCopy::fetch() {
  if (here_.defined()) return;
  const base::MemoryScope purpose("inputs from the host");
  here_ = at::empty_like(away_, at::TensorOptions().device(device_).pinned_memory(false));
  if (here_.is_cuda())
    back_ = copy_beside(here_, away_, device_, kernels::Beside::to_gpu);
  else
    here_.copy_(away_);
}

at::Tensor HostCopy::take() {
  fetch();
  if (back_) back_->block(kernels::current_stream(device_));
  return std::move(here_);
}

}  // namespace cairn::parallel
