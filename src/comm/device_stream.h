#pragma once

namespace cairn::comm {

// The current stream (a cudaStream_t) of this device. Throws if Cairn was built without CUDA.
void* current_device_stream(int device);

}  // namespace cairn::comm
