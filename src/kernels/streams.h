#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace cairn::kernels {

// What a GPU does beside computing. One stream for each, since each has memory of its own.
enum class SideStream { islands, to_host, to_gpu };
c10::Stream side_stream(const at::Device& device, SideStream what);

// Where this thread's work on the GPU goes.
c10::Stream current_stream(const at::Device& device);

}  // namespace cairn::kernels
