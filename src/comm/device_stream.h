#pragma once

namespace cairn::comm {

// The stream (a cudaStream_t) on which tensors of this device are worked on just now. Throws where Cairn was built without CUDA.
void* current_device_stream(int device);

}  // namespace cairn::comm
