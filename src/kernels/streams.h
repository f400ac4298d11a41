#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace cairn::kernels {

// The streams beside the compute stream, one for each purpose: the caching allocator keeps memory by stream.
enum class SideStream { islands, to_host, to_gpu, teacher };
c10::Stream side_stream(const at::Device& device, SideStream what);

// The stream that this thread's kernels go to.
c10::Stream current_stream(const at::Device& device);

}  // namespace cairn::kernels
